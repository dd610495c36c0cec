"""Masks and noise are functions of the place in the global order, however it is split."""

import pytest
import torch

from flexpredict.model.masking import EvenMasks, MaskSampler, PaperMasks
from flexpredict.objective.views import View
from flexpredict.train.chunks import Chunks

CPU = torch.device("cpu")


def _views(sampler: MaskSampler, place: int, count: int, epoch: int = 2) -> list[View]:
    chunks = Chunks(sampler, seed=1, chunk_size=12)
    return chunks.views(chunks.plans(epoch, place, count), CPU)


def _per_image(views: list[View]) -> list[tuple[list[int], list[list[int]], float]]:
    out = []
    for view in views:
        noise = view.draws.normal(*view.masks.targets.shape, 5, like=torch.zeros(1))
        for image in range(len(view.masks)):
            context, targets = view.masks.context[image], view.masks.targets[image]
            out.append((context.tolist(), targets.tolist(), noise[image].sum().item()))
    return out


@pytest.mark.parametrize(
    "sampler", [PaperMasks((14, 14)), EvenMasks((8, 8))], ids=["paper", "even"]
)
@pytest.mark.parametrize("split", [1, 5, 8, 12, 20])
def test_views__any_split_of_the_batch_gives_the_same(sampler: MaskSampler, split: int) -> None:
    whole = _per_image(_views(sampler, 40, 40))
    parts = []
    for start in range(40, 80, split):
        parts += _per_image(_views(sampler, start, min(split, 80 - start)))
    assert parts == whole


def test_views__paper_chunks_have_lengths_of_their_own_and_even_ones_join() -> None:
    paper = _views(PaperMasks((14, 14)), 0, 120)
    assert len({view.masks.context.shape[1] for view in paper}) > 3
    (even,) = _views(EvenMasks((8, 8)), 0, 120)
    assert len(even.masks) == 120


def test_views__differ_between_epochs_chunks_and_seeds() -> None:
    sampler = EvenMasks((8, 8))
    images = _per_image(_views(sampler, 0, 24)) + _per_image(_views(sampler, 0, 24, epoch=3))
    other = Chunks(sampler, seed=2, chunk_size=12)
    images += _per_image(other.views(other.plans(2, 0, 24), CPU))
    assert len({noise for _, _, noise in images}) == 72
    assert len({str(targets) for _, targets, _ in images}) == 72
