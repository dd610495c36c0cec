"""Classify with a handful of labelled images per class: the nearest class mean.

Run: python examples/few_shot.py run/ labelled/train/ --shots 5
"""

import argparse

import numpy as np

import flexpredict as fp


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("labelled", help="A folder with a folder for each class.")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--draws", type=int, default=20, help="Of the labelled images.")
    given = parser.parse_args(arguments)
    found = fp.features(given.run, given.labelled)
    assert found.labels is not None, "expected a folder for each class"
    features = (found.features - found.features.mean(0)) / found.features.std(0)
    rng, accuracies = np.random.default_rng(0), []
    for _ in range(given.draws):
        shown = np.concatenate([
            rng.permutation(np.flatnonzero(found.labels == label))[: given.shots]
            for label in np.unique(found.labels)
        ])  # fmt: skip
        hidden = np.setdiff1d(np.arange(len(features)), shown)
        classes = np.unique(found.labels[shown])
        means = np.stack(
            [features[shown[found.labels[shown] == label]].mean(0) for label in classes]
        )
        distances = np.linalg.norm(features[hidden][:, None] - means, axis=2)
        guesses = classes[distances.argmin(1)]
        accuracies.append(100 * float((guesses == found.labels[hidden]).mean()))
    mean, spread = float(np.mean(accuracies)), float(np.std(accuracies))
    print(f"{given.shots} images a class: {mean:.1f} % ± {spread:.1f} over {given.draws} draws")
    return mean


if __name__ == "__main__":
    main()
