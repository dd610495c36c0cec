"""What a CUDA graph is fed with; the graphs themselves are tested on a GPU."""

import torch

from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.train.graphs import Recorded


def _draws(seed: int) -> Draws:
    return Draws([ChunkPart(torch.Generator().manual_seed(seed), 4, 0, 4)])


def _ask(draws: Draws) -> list[torch.Tensor]:
    like = torch.zeros(1)
    return [draws.normal(4, 3, like=like), draws.uniform(4, like=like)]


def test_recorded__gives_the_real_numbers_first_and_the_same_places_ever_after() -> None:
    recorded = Recorded(_draws(0))
    first = _ask(recorded)
    for found, real in zip(first, _ask(_draws(0)), strict=True):
        assert torch.equal(found, real)
    for _ in range(3):  # warm-ups and the capture
        recorded.rewind()
        assert all(a is b for a, b in zip(_ask(recorded), first, strict=True))
    recorded.refill(_draws(1))
    for found, real in zip(first, _ask(_draws(1)), strict=True):
        assert torch.equal(found, real)
