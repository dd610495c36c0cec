"""Copies of the blocks' weights in the format of their products, all made by one kernel.

Autocast makes a copy of each weight where it is used, and a float32 gradient of each copy's: some
two hundred small kernels a step, for which a small model waits longer than for its products.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flexpredict.model.blocks import Block


class Narrow:
    """The weights of all products in a model's blocks, and a narrow copy of each."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        blocks = [part for part in model.modules() if isinstance(part, Block)]
        # Others than plain ones, as of float8, look after their weights themselves.
        self._linears = [part for b in blocks for part in b.modules() if type(part) is nn.Linear]
        self._wide: list[Tensor] = [linear.weight for linear in self._linears]
        self._narrow: list[Tensor] = [
            nn.Parameter(weight.detach().to(dtype), requires_grad=weight.requires_grad)
            for weight in self._wide
        ]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Forward and backward within are computed with copies of the weights as they are now.

        At the end their gradients take the place of the weights' own.
        """
        if self._narrow:
            with torch.no_grad():
                torch._foreach_copy_(self._narrow, self._wide)
        for copy in self._narrow:
            copy.grad = None
        self._set(self._narrow)
        try:
            yield
        finally:
            self._set(self._wide)
        found = [
            (weight, copy.grad)
            for weight, copy in zip(self._wide, self._narrow, strict=True)
            if copy.grad is not None
        ]
        if not found:
            return
        gradients = [torch.empty_like(weight) for weight, _ in found]
        torch._foreach_copy_(gradients, [gradient for _, gradient in found])
        for (weight, _), gradient in zip(found, gradients, strict=True):
            weight.grad = gradient

    def _set(self, weights: list[Tensor]) -> None:
        for linear, weight in zip(self._linears, weights, strict=True):
            linear.weight = weight
