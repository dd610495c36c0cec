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
    """The weights of all products in a model's blocks, and a narrow copy of each.

    And biases that are added within products: two of each block that is not trained.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        blocks = [part for part in model.modules() if isinstance(part, Block)]
        linears = [part for block in blocks for part in block.modules() if _is_plain(part)]
        within = [part for b in blocks for part in (b.attn.qkv, b.mlp.fc1) if _is_plain(part)]
        self._places = [(linear, "weight") for linear in linears]
        self._places += [(linear, "bias") for linear in within if not linear.bias.requires_grad]
        self._wide: list[Tensor] = [getattr(linear, name) for linear, name in self._places]
        self._narrow: list[Tensor] = [
            nn.Parameter(wide.detach().to(dtype), requires_grad=wide.requires_grad)
            for wide in self._wide
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

    def _set(self, values: list[Tensor]) -> None:
        for (linear, name), value in zip(self._places, values, strict=True):
            setattr(linear, name, value)


def _is_plain(part: nn.Module) -> bool:
    """Others, as of float8, look after their weights themselves."""
    return type(part) is nn.Linear
