"""Linear probes in closed form: ridge regression, on one-hot labels or on any numbers.

The penalty is chosen on a held-out part of the training set; the test set is touched once. Only
sums over chunks of images are kept, so that memory does not depend on their number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-7, 3))  # per training image
_HELD_OUT = 0.2
_CHUNK = 65_536

Targets = Callable[[Tensor], Tensor]  # rows (n,) -> what is to be predicted for them, (n, m)


@dataclass(frozen=True, slots=True)
class Probe:
    accuracy: float  # on the test set, in percent
    penalty: float  # the one chosen


@torch.inference_mode()
def ridge_probe(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
) -> Probe:
    """Accuracy of a linear classifier on features (n, D), with labels 0, 1, … (n,)."""
    fit, penalty = ridge_classifier(train, train_labels, seed=seed)
    return Probe(
        accuracy=_accuracy(fit, test, test_labels, torch.arange(len(test))), penalty=penalty
    )


@dataclass(frozen=True, slots=True)
class Fit:
    mean: Tensor
    scale: Tensor
    weight: Tensor  # (D, m)
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(n, D) -> (n, m), float64"""
        return (features.double() - self.mean) / self.scale @ self.weight + self.bias


def ridge_classifier(features: Tensor, labels: Tensor, *, seed: int = 0) -> tuple[Fit, float]:
    """Scores of classes 0, 1, … from features (n, D), and the penalty that was chosen."""
    classes = int(labels.max()) + 1

    def one_hot(rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(labels[rows], classes)

    return choose_fit(
        features, one_hot, lambda fit, rows: _accuracy(fit, features, labels, rows), seed=seed
    )


def choose_fit(
    features: Tensor, targets: Targets, score: Callable[[Fit, Tensor], float], *, seed: int = 0
) -> tuple[Fit, float]:
    """The fit to all rows with the penalty that is best on held-out rows, and that penalty.

    score: of a fit on some rows; the higher, the better.
    """
    if len(features) < 3:
        raise ValueError(
            f"{len(features)} labelled images are too few for a probe: a part of them is held out"
        )
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    held = order[: max(1, round(len(features) * _HELD_OUT))]
    sums = Sums.of(features, targets, order[len(held) :])
    scores = [score(fit, held) for fit in fits(sums, PENALTIES)]
    best = PENALTIES[max(range(len(scores)), key=scores.__getitem__)]
    (fit,) = fits(sums + Sums.of(features, targets, held), (best,))
    return fit, best


@dataclass(frozen=True, slots=True)
class Sums:
    """All that a fit needs of the images it has seen, in float64."""

    count: int
    products: Tensor  # Xᵀ X, (D, D)
    features: Tensor  # Σ x, (D,)
    towards: Tensor  # Xᵀ Y, (D, m)
    targets: Tensor  # Σ y, (m,)

    @classmethod
    def of(cls, features: Tensor, targets: Targets, rows: Tensor) -> "Sums":
        first, *others = rows.split(_CHUNK)
        sums = cls._of_chunk(features[first], targets(first))
        for part in others:
            sums += cls._of_chunk(features[part], targets(part))
        return sums

    @classmethod
    def _of_chunk(cls, x: Tensor, y: Tensor) -> "Sums":
        x, y = x.double(), y.to(x.device).double()
        return cls(len(x), x.T @ x, x.sum(0), x.T @ y, y.sum(0))

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.count + other.count,
            self.products + other.products,
            self.features + other.features,
            self.towards + other.towards,
            self.targets + other.targets,
        )


def fits(sums: Sums, penalties: tuple[float, ...]) -> list[Fit]:
    """Solves for all penalties with one eigendecomposition, as on standardised features."""
    mean, bias = sums.features / sums.count, sums.targets / sums.count
    centred = sums.products - sums.count * mean[:, None] * mean
    scale = (centred.diagonal() / (sums.count - 1)).clamp(min=1e-16).sqrt()
    values, vectors = torch.linalg.eigh(centred / scale[:, None] / scale)
    projected = vectors.T @ ((sums.towards - sums.features[:, None] * bias) / scale[:, None])
    return [
        Fit(
            mean,
            scale,
            vectors @ (projected / (values.clamp(min=0) + penalty * sums.count)[:, None]),
            bias,
        )
        for penalty in penalties
    ]


def _accuracy(fit: Fit, features: Tensor, labels: Tensor, rows: Tensor) -> float:
    right = 0
    for part in rows.split(_CHUNK):
        scores = fit(features[part])
        right += int((scores.argmax(1) == labels[part].to(scores.device)).sum())
    return 100 * right / len(rows)
