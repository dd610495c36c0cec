"""Pretrain on a folder of photos, look at it, and take it elsewhere.

Run: python examples/pretrain_folder.py photos/ run/ --set epochs=50
"""

import argparse

import flexpredict as fp
from flexpredict.config import parse_overrides


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos")
    parser.add_argument("run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(arguments)
    result = fp.pretrain(given.photos, given.run, resume=True, **parse_overrides(given.set))
    encoder = fp.load(result.run)
    print(f"{result.steps} steps; features of {encoder.dim} numbers an image")
    print(f"figures: flexpredict report {given.run}")
    print(f"for transformers: flexpredict export {given.run} --to huggingface --out exported/")


if __name__ == "__main__":
    main()
