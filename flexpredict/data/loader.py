"""Batches in an order that is a function of the seed: any step can be asked for, by anyone.

The epoch's order is a permutation computed place by place; step s of the run takes places
[s · batch_size, (s + 1) · batch_size) of it, and the rest of an epoch that does not fill a batch is
left out. Ranks take equal consecutive parts of the batch. Crops are functions of (seed, epoch,
sample index). Nothing depends on the number of workers or ranks, or on where a run was interrupted.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flexpredict.data.augment import BATCH_DRAWS, CROP_DRAWS
from flexpredict.data.crops import crop_of
from flexpredict.data.decode import BadImage
from flexpredict.data.random import Stream, permute, uniforms
from flexpredict.data.sources.base import Pixels, Source

_MOST_REPLACEMENTS = 100


class Batch(NamedTuple):
    """One rank's part of a global batch."""

    images: Tensor  # (b, c, H, W) uint8, channels last in memory: the device reorders them faster
    draws: Tensor  # (b, BATCH_DRAWS) for the augmentations made on the device
    indices: Tensor  # (b,) of the samples in the source
    epoch: int
    place: int  # of the first image in the epoch's order
    rejected: dict[int, str]  # samples that could not be used, and why
    failure: str | None  # why there is no batch; said here, since a worker cannot raise in one line


class Order:
    """Which samples make up each step."""

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        if size < batch_size:
            raise ValueError(
                f"{size} images do not fill a batch of {batch_size}: set batch_size={size} or less"
            )
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.steps_per_epoch = size // batch_size

    def epoch_and_place(self, step: int) -> tuple[int, int]:
        epoch, within = divmod(step, self.steps_per_epoch)
        return epoch, within * self.batch_size

    def indices(self, epoch: int, start: int, count: int) -> NDArray[np.int64]:
        places = np.arange(start, start + count)
        return permute(places, self.size, self.seed, Stream.ORDER, epoch)


class Batches(Dataset[Batch]):
    """The part of every step's batch that belongs to one rank."""

    def __init__(
        self,
        source: Source,
        order: Order,
        *,
        image_size: tuple[int, int],
        channels: int = 3,
        crop_scale: tuple[float, float] = (0.3, 1.0),
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if order.batch_size % world:
            raise ValueError(
                f"batch_size={order.batch_size} does not divide over {world} processes"
            )
        self.source, self.order = source, order
        self.image_size, self.channels, self.crop_scale = image_size, channels, crop_scale
        self.share = order.batch_size // world
        self.offset = rank * self.share

    def __getitem__(self, step: int) -> Batch:
        epoch, start = self.order.epoch_and_place(step)
        place = start + self.offset
        indices = self.order.indices(epoch, place, self.share)
        seed = self.order.seed
        crops = uniforms(seed, Stream.CROP, epoch, indices, count=CROP_DRAWS)
        rejected: dict[int, str] = {}
        images, failure = np.empty((self.share, *self.image_size, self.channels), np.uint8), None
        try:
            for image, index, draw in zip(images, indices, crops, strict=True):
                image[:] = self._crop(int(index), draw, rejected)
        except BadImage as error:
            failure = str(error)
        draws = uniforms(seed, Stream.AUGMENT, epoch, indices, count=BATCH_DRAWS)
        return Batch(
            images=torch.from_numpy(images).permute(0, 3, 1, 2),
            draws=torch.from_numpy(draws).float(),
            indices=torch.from_numpy(indices),
            epoch=epoch,
            place=place,
            rejected=rejected,
            failure=failure,
        )

    def _crop(self, index: int, draws: NDArray[np.float64], rejected: dict[int, str]) -> Pixels:
        """A random crop of the sample; of the next usable one if it cannot be used."""
        source = self.source
        tries = min(_MOST_REPLACEMENTS, len(source))
        for step in range(tries):
            candidate = (index + step) % len(source)
            try:
                data = source.read(candidate)
                return crop_of(data, self.channels, draws, self.crop_scale, self.image_size)
            except (BadImage, OSError) as error:
                rejected[candidate] = str(error)
        raise BadImage(
            f"{tries} images in a row cannot be used; the first is {source.name(index)}: "
            f"{rejected[index]}"
        )


def load(batches: Batches, steps: range, *, workers: int = 0) -> Iterator[Batch]:
    """The batches of some steps in turn, prepared ahead by worker processes."""
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    yield from loader
