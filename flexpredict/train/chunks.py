"""Masks and noise of a batch, from its place in the global order.

A chunk is a run of `chunk_size` places of the epoch's order. Its masks and its noise are functions
of (seed, epoch, chunk); whoever holds a part of it computes it whole and takes that part. Masks are
drawn by whoever loads the images, ahead of time; noise is drawn on the device, when it is needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from flexpredict.data.random import Stream, seed_from
from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.model.masking import Masks, MaskSampler
from flexpredict.objective.views import View


class Part(NamedTuple):
    """Images [start, stop) of a chunk."""

    chunk: int
    start: int
    stop: int


class Plan(NamedTuple):
    """Masks of consecutive images that share their lengths, and the chunks they are parts of."""

    context: Tensor  # (b, C)
    targets: Tensor  # (b, K, T)
    counts: Tensor  # (2, N): how often each patch is context, and target
    epoch: int
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Draws the masks of any place of any epoch. Called in the processes that load images."""

    sampler: MaskSampler
    seed: int
    chunk_size: int
    split: int = 1  # into how many equal parts a batch is cut, one after the other

    def __call__(self, epoch: int, place: int, count: int) -> list[list[Plan]]:
        """For each part of the images at places [place, place + count), the plans that cover it."""
        each = count // self.split
        return [self.plans(epoch, place + at, each) for at in range(0, count, each)]

    def plans(self, epoch: int, place: int, count: int) -> list[Plan]:
        """Neighbouring chunks with equal lengths make one plan: they can be computed together."""
        found: list[tuple[Masks, Part]] = []
        for chunk in range(place // self.chunk_size, -(-(place + count) // self.chunk_size)):
            first = chunk * self.chunk_size
            start = max(place, first) - first
            stop = min(place + count, first + self.chunk_size) - first
            seed = seed_from(self.seed, Stream.MASKS, epoch, chunk)
            masks = self.sampler.sample(self.chunk_size, torch.Generator().manual_seed(seed))
            found.append((masks[start:stop], Part(chunk, start, stop)))
        plans, patches = [], math.prod(self.sampler.grid)
        for _, group in groupby(found, key=lambda pair: _lengths(pair[0])):
            masks_of, parts = zip(*group, strict=True)
            context = torch.cat([masks.context for masks in masks_of])
            targets = torch.cat([masks.targets for masks in masks_of])
            counts = torch.stack(
                [x.flatten().bincount(minlength=patches) for x in (context, targets)]
            )
            plans.append(Plan(context, targets, counts, epoch, list(parts)))
        return plans

    def views(self, plans: Sequence[Plan], device: torch.device) -> list[View]:
        """The plans on a device, with their noise still to be drawn there."""
        views = []
        for plan in plans:
            draws = []
            for chunk, start, stop in plan.parts:
                seed = seed_from(self.seed, Stream.NOISE, plan.epoch, chunk)
                generator = torch.Generator(device).manual_seed(seed)
                draws.append(ChunkPart(generator, self.chunk_size, start, stop - start))
            views.append(View(Masks(plan.context, plan.targets).to(device), Draws(draws)))
        return views


def _lengths(masks: Masks) -> tuple[int, int]:
    return masks.context.shape[-1], masks.targets.shape[-1]
