"""A linear probe in closed form: ridge regression on one-hot labels.

The penalty is chosen on a held-out part of the training set; the test set is touched once. Only
sums over chunks of images are kept, so that memory does not depend on their number.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-7, 3))  # per training image
_HELD_OUT = 0.2
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Probe:
    accuracy: float  # on the test set, in percent
    penalty: float  # the one chosen


@torch.inference_mode()
def ridge_probe(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
) -> Probe:
    """Accuracy of a linear classifier on features (n, D), with labels 0, 1, … (n,)."""
    if len(train) < 3:
        raise ValueError(
            f"{len(train)} labelled images are too few for a probe: a part of them is held out"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=generator).to(train_labels.device)
    held = order[: max(1, round(len(train) * _HELD_OUT))]
    kept = order[len(held) :]
    classes = int(train_labels.max()) + 1
    kept_sums = _Sums.of(train, train_labels, kept, classes)
    fits = _fit(kept_sums, PENALTIES)
    scores = [_accuracy(fit, train, train_labels, held) for fit in fits]
    best = PENALTIES[max(range(len(scores)), key=scores.__getitem__)]
    (fit,) = _fit(kept_sums + _Sums.of(train, train_labels, held, classes), (best,))
    every = torch.arange(len(test), device=test_labels.device)
    return Probe(accuracy=_accuracy(fit, test, test_labels, every), penalty=best)


@dataclass(frozen=True, slots=True)
class _Sums:
    """All that a fit needs of the images it has seen, in float64."""

    products: Tensor  # Xᵀ X, (D, D)
    features: Tensor  # Σ x, (D,)
    by_class: Tensor  # Xᵀ Y, (D, classes)
    counts: Tensor  # (classes,)

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, rows: Tensor, classes: int) -> "_Sums":
        width = features.shape[1]
        options = {"dtype": torch.float64, "device": features.device}
        products = torch.zeros(width, width, **options)  # type: ignore[call-overload]
        total = torch.zeros(width, **options)  # type: ignore[call-overload]
        by_class = torch.zeros(width, classes, **options)  # type: ignore[call-overload]
        counts = torch.zeros(classes, **options)  # type: ignore[call-overload]
        for part in rows.split(_CHUNK):
            x = features[part].double()
            y = torch.nn.functional.one_hot(labels[part], classes).double().to(x.device)
            products.addmm_(x.T, x)
            total += x.sum(0)
            by_class.addmm_(x.T, y)
            counts += y.sum(0)
        return cls(products, total, by_class, counts)

    def __add__(self, other: "_Sums") -> "_Sums":
        return _Sums(
            self.products + other.products,
            self.features + other.features,
            self.by_class + other.by_class,
            self.counts + other.counts,
        )


@dataclass(frozen=True, slots=True)
class _Fit:
    mean: Tensor
    scale: Tensor
    weight: Tensor  # (D, classes)
    bias: Tensor


def _fit(sums: _Sums, penalties: tuple[float, ...]) -> list[_Fit]:
    """Solves for all penalties with one eigendecomposition, as on standardised features."""
    count = sums.counts.sum()
    mean, bias = sums.features / count, sums.counts / count
    centred = sums.products - count * mean[:, None] * mean
    scale = (centred.diagonal() / (count - 1)).clamp(min=1e-16).sqrt()
    values, vectors = torch.linalg.eigh(centred / scale[:, None] / scale)
    towards = (sums.by_class - sums.features[:, None] * bias) / scale[:, None]
    projected = vectors.T @ towards
    return [
        _Fit(
            mean,
            scale,
            vectors @ (projected / (values.clamp(min=0) + penalty * count)[:, None]),
            bias,
        )
        for penalty in penalties
    ]


def _accuracy(fit: _Fit, features: Tensor, labels: Tensor, rows: Tensor) -> float:
    right = 0
    for part in rows.split(_CHUNK):
        scores = (features[part].double() - fit.mean) / fit.scale @ fit.weight + fit.bias
        right += int((scores.argmax(1) == labels[part].to(scores.device)).sum())
    return 100 * right / len(rows)
