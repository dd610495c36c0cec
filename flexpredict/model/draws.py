"""Random numbers for the images of a batch, the same however the batch was split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """`count` images of a chunk of `size`, from place `start` on, and the chunk's generator."""

    generator: torch.Generator
    size: int
    start: int
    count: int


class Draws:
    """Numbers for images that come from one or more chunks of the global order.

    Every draw is made for whole chunks and the parts held are cut out, so that the numbers do not
    depend on how a batch was split over ranks or micro-batches. Without parts they come from
    torch's global generator, as in anybody's training code.
    """

    def __init__(self, parts: Sequence[ChunkPart] = ()) -> None:
        self._parts = parts

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        """Standard normal numbers; the first axis runs over images."""
        return self._draw(torch.randn, shape, like)

    def uniform(self, *shape: int, like: Tensor) -> Tensor:
        """Numbers in [0, 1); the first axis runs over images."""
        return self._draw(torch.rand, shape, like)

    def _draw(self, draw: Callable[..., Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
        # Half precision would draw coarser numbers: the noise is float32 or better.
        dtype = like.dtype if like.dtype == torch.float64 else torch.float32
        if not self._parts:
            return draw(shape, dtype=dtype, device=like.device)
        assert sum(part.count for part in self._parts) == shape[0]
        numbers = torch.empty(shape, dtype=dtype, device=like.device)
        at = 0
        for part in self._parts:
            held = numbers[at : at + part.count]
            if part.count == part.size:
                draw(held.shape, generator=part.generator, out=held)
            else:
                whole = (part.size, *shape[1:])
                drawn = draw(whole, generator=part.generator, dtype=dtype, device=like.device)
                held.copy_(drawn[part.start : part.start + part.count])
            at += part.count
        return numbers


class Units(Draws):
    """Unit vectors in place of normal numbers: what is linear in these shows its matrix."""

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        return torch.eye(shape[-1], dtype=like.dtype, device=like.device)
