"""A linear probe in closed form: ridge regression on one-hot labels.

The penalty is chosen on a held-out part of the training set; the test set is touched once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-7, 3))  # per training image
_HELD_OUT = 0.2


@dataclass(frozen=True, slots=True)
class Probe:
    accuracy: float  # on the test set, in percent
    penalty: float  # the one chosen


def ridge_probe(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
) -> Probe:
    """Accuracy of a linear classifier on features (n, D), with labels 0, 1, … (n,)."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=generator)
    held = order[: round(len(train) * _HELD_OUT)]
    kept = order[len(held) :]
    fits = _fit(train[kept], train_labels[kept], PENALTIES)
    scores = [_accuracy(fit, train[held], train_labels[held]) for fit in fits]
    best = PENALTIES[max(range(len(scores)), key=scores.__getitem__)]
    (fit,) = _fit(train, train_labels, (best,))
    return Probe(accuracy=_accuracy(fit, test, test_labels), penalty=best)


@dataclass(frozen=True, slots=True)
class _Fit:
    mean: Tensor
    scale: Tensor
    weight: Tensor  # (D, classes)
    bias: Tensor


def _fit(features: Tensor, labels: Tensor, penalties: tuple[float, ...]) -> list[_Fit]:
    """Standardises the features and solves for all penalties with one eigendecomposition."""
    x = features.double()
    mean, scale = x.mean(0), x.std(0).clamp(min=1e-8)
    x = (x - mean) / scale
    y = torch.nn.functional.one_hot(labels).double()
    bias = y.mean(0)
    values, vectors = torch.linalg.eigh(x.T @ x)
    projected = vectors.T @ (x.T @ (y - bias))
    return [
        _Fit(
            mean,
            scale,
            vectors @ (projected / (values.clamp(min=0) + penalty * len(x))[:, None]),
            bias,
        )
        for penalty in penalties
    ]


def _accuracy(fit: _Fit, features: Tensor, labels: Tensor) -> float:
    scores = (features.double() - fit.mean) / fit.scale @ fit.weight + fit.bias
    return 100 * float((scores.argmax(1) == labels).double().mean())
