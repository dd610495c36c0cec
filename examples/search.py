"""Find the images of a folder that are most like one of them.

Run: python examples/search.py run/ photos/ photos/beach/0012.jpg
"""

import argparse
from pathlib import Path

import numpy as np

import flexpredict as fp


def main(arguments: list[str] | None = None) -> list[str]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("photos", type=Path)
    parser.add_argument("query", type=Path)
    parser.add_argument("--count", type=int, default=5)
    given = parser.parse_args(arguments)
    found = fp.features(given.run, given.photos)  # cached: the second search is quick
    # What all images share tells nothing: without it, likeness tells more.
    features = found.features - found.features.mean(0)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    names = [str(Path(name)) for name in found.names]
    query = names.index(str(given.query.relative_to(given.photos)))
    likeness = features @ features[query]
    best = [int(index) for index in np.argsort(-likeness) if index != query][: given.count]
    for index in best:
        print(f"{likeness[index]:.3f}  {names[index]}")
    return [names[index] for index in best]


if __name__ == "__main__":
    main()
