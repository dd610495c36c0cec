"""Masks and noise of a batch, from its place in the global order.

A chunk is a run of `chunk_size` places of the epoch's order. Its masks and its noise are functions
of (seed, epoch, chunk); whoever holds a part of it computes it whole and takes that part.
"""

from itertools import groupby

import torch

from flexpredict.data.random import Stream, seed_from
from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.model.masking import Masks, MaskSampler
from flexpredict.objective.views import View


def views_of(
    sampler: MaskSampler,
    epoch: int,
    place: int,
    count: int,
    *,
    seed: int,
    chunk_size: int,
    device: torch.device,
) -> list[View]:
    """Views of the images at places [place, place + count) of the epoch's order.

    Neighbouring chunks with equal lengths make one view, since they can be computed together.
    """
    parts: list[tuple[Masks, ChunkPart]] = []
    for chunk in range(place // chunk_size, -(-(place + count) // chunk_size)):
        first = chunk * chunk_size
        start, stop = max(place, first) - first, min(place + count, first + chunk_size) - first
        generator = torch.Generator().manual_seed(seed_from(seed, Stream.MASKS, epoch, chunk))
        masks = sampler.sample(chunk_size, generator)[start:stop]
        noise = torch.Generator(device).manual_seed(seed_from(seed, Stream.NOISE, epoch, chunk))
        parts.append((masks, ChunkPart(noise, chunk_size, start, stop - start)))
    views = []
    for _, group in groupby(parts, key=lambda part: _lengths(part[0])):
        masks_of, draws_of = zip(*group, strict=True)
        views.append(View(_join(masks_of).to(device), Draws(draws_of)))
    return views


def _lengths(masks: Masks) -> tuple[int, int]:
    return masks.context.shape[-1], masks.targets.shape[-1]


def _join(masks: tuple[Masks, ...]) -> Masks:
    if len(masks) == 1:
        return masks[0]
    return Masks(torch.cat([m.context for m in masks]), torch.cat([m.targets for m in masks]))
