"""Many linear classifiers on the same features, trained at the same time.

The heads differ in learning rate, weight decay and in whether a BatchNorm comes first; they share
no parameters, so each trains as if it were alone. Their weights are stacked, and a step costs few
operations for all of them, with gradients written out. A BatchNorm sees the same batch in every
head, so its statistics are shared; its scale and shift are each head's own.

Letters: B images, D features, H heads, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Optimizer = Literal["sgd", "lars"]
_NORM_EPS, _NORM_MOMENTUM = 1e-5, 0.1  # of BatchNorm, as torch has them
_TRUST = 0.001  # LARS
_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Head:
    """What one head is trained with."""

    lr: float  # per 256 images; or a factor on the protocol's
    weight_decay: float = 0.0
    layers: int = 1
    batch_norm: bool = False


class Heads:
    """Heads with equal `layers`, on features (B, D)."""

    def __init__(
        self,
        heads: Sequence[Head],
        width: int,
        classes: int,
        *,
        optimizer: Optimizer = "sgd",
        generator: torch.Generator,
    ) -> None:
        assert len({head.layers for head in heads}) == 1
        # Those with a BatchNorm come first.
        assert [head.batch_norm for head in heads] == sorted(
            (head.batch_norm for head in heads), reverse=True
        )
        self.heads, self.normed = list(heads), sum(head.batch_norm for head in heads)
        self.optimizer = optimizer
        count, bound = len(heads), width**-0.5  # torch's default for a Linear
        device = generator.device
        self.weight = torch.empty(count, classes, width, device=device)
        self.bias = torch.empty(count, classes, device=device)
        for drawn in (self.weight, self.bias):
            drawn.uniform_(-bound, bound, generator=generator)
        self.scale = torch.ones(self.normed, width, device=device)
        self.shift = torch.zeros(self.normed, width, device=device)
        self.mean = torch.zeros(width, device=device)
        self.variance = torch.ones(width, device=device)
        self.lr = torch.tensor([head.lr for head in heads], device=device)
        self.weight_decay = torch.tensor([head.weight_decay for head in heads], device=device)
        self._velocity: dict[str, Tensor] = {}

    def step(self, features: Tensor, labels: Tensor, lr: float) -> None:
        """One step on a batch (B, D), each head at its own lr times `lr`."""
        normal = self._normalised(features, training=True)
        x = self._inputs(features, normal)  # (H, B, D)
        error = torch.softmax(self._scores(x), dim=-1)  # (H, B, C)
        target = labels[:, None].expand(len(self.heads), -1, 1)
        error.scatter_add_(2, target, error.new_full((), -1.0).expand(target.shape))
        error /= len(features)
        gradients = {"weight": torch.bmm(error.transpose(1, 2), x), "bias": error.sum(1)}
        if self.normed:
            back = torch.bmm(error[: self.normed], self.weight[: self.normed])  # (normed, B, D)
            gradients |= {"scale": (back * normal).sum(1), "shift": back.sum(1)}
        for name, gradient in gradients.items():
            self._update(name, gradient, lr)

    def predict(self, features: Tensor) -> Tensor:
        """The class that each head gives to each image, (H, B)."""
        x = self._inputs(features, self._normalised(features, training=False))
        return self._scores(x).argmax(-1)

    def _scores(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], x, self.weight.transpose(1, 2))

    def _inputs(self, features: Tensor, normal: Tensor) -> Tensor:
        """What each head sees, (H, B, D)."""
        x = features.expand(len(self.heads) - self.normed, -1, -1)
        if not self.normed:
            return x
        normed = torch.addcmul(self.shift[:, None], normal, self.scale[:, None])
        return torch.cat([normed, x])

    def _normalised(self, x: Tensor, *, training: bool) -> Tensor:
        if not self.normed:
            return x
        mean, variance = self.mean, self.variance
        if training:
            variance, mean = torch.var_mean(x, 0, correction=0)
            self.mean.lerp_(mean, _NORM_MOMENTUM)
            self.variance.lerp_(variance * (len(x) / max(1, len(x) - 1)), _NORM_MOMENTUM)
        return (x - mean) * torch.rsqrt(variance + _NORM_EPS)

    def _update(self, name: str, gradient: Tensor, lr: float) -> None:
        """Weights and biases are decayed, BatchNorm is not (spec 3.1)."""
        value: Tensor = getattr(self, name)
        shape, count = (-1,) + (1,) * (value.ndim - 1), len(value)
        rate = (self.lr[:count] * lr).view(shape)
        if name not in self._velocity:
            self._velocity[name] = torch.zeros_like(value)
        velocity = self._velocity[name]
        if name in ("weight", "bias"):
            gradient.addcmul_(self.weight_decay.view(shape), value)
        if self.optimizer == "lars":
            # One-dimensional parameters get no adaptive rate.
            lars_update(value, gradient, velocity, rate, _MOMENTUM, adapt=name == "weight")
        else:
            nesterov_update(value, gradient, velocity, rate, _MOMENTUM)


def nesterov_update(
    value: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    rate: Tensor,
    momentum: float,
) -> None:
    """SGD with Nesterov momentum, in place, as torch has it."""
    torch.add(gradient, velocity, alpha=momentum, out=velocity)
    value.addcmul_(rate, torch.add(gradient, velocity, alpha=momentum), value=-1)


def lars_update(
    value: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    rate: Tensor,
    momentum: float,
    *,
    adapt: bool,
) -> None:
    """LARS, in place: the gradient, decay included, is scaled to a share of each head's weights."""
    if adapt:
        size, length = (
            torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) for x in (value, gradient)
        )
        gradient = gradient * torch.where((size > 0) & (length > 0), _TRUST * size / length, 1.0)
    torch.add(gradient, velocity, alpha=momentum, out=velocity)
    value.addcmul_(rate, velocity, value=-1)
