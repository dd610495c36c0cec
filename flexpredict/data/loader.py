"""Batches in an order that is a function of the seed: any step can be asked for, by anyone.

The epoch's order is a permutation computed place by place; step s of the run takes places
[s · batch_size, (s + 1) · batch_size) of it, and the rest of an epoch that does not fill a batch is
left out. Ranks take equal consecutive parts of the batch. Crops are functions of (seed, epoch,
sample index). Nothing depends on the number of workers or ranks, or on where a run was interrupted.
"""

import copy
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flexpredict.data.augment import BATCH_DRAWS, CROP_DRAWS, random_crops
from flexpredict.data.crops import Cropper
from flexpredict.data.decode import BadImage
from flexpredict.data.held import Held, OnDevice, Place
from flexpredict.data.parcel import Parcel
from flexpredict.data.random import Stream, permute, uniforms
from flexpredict.data.sources.base import Progress, Source
from flexpredict.data.sources.memory import MemorySource

# Made by the same processes as the images of places [place, place + count) of an epoch's order:
# called with epoch, place and count.
Beside = Callable[[int, int, int], Any]

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
    beside: Any = None  # what the caller wanted to have with the images


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
        beside: Beside | None = None,
    ) -> None:
        if order.batch_size % world:
            raise ValueError(
                f"batch_size={order.batch_size} does not divide over {world} processes"
            )
        self.source, self.order = source, order
        self.image_size, self.channels, self.crop_scale = image_size, channels, crop_scale
        self.beside = beside
        self._crop = Cropper(channels, crop_scale)
        self.share = order.batch_size // world
        self.offset = rank * self.share

    def __getitem__(self, step: int) -> Batch:
        epoch, start = self.order.epoch_and_place(step)
        place = start + self.offset
        indices = self.order.indices(epoch, place, self.share)
        seed = self.order.seed
        crops = uniforms(seed, Stream.CROP, epoch, indices, count=CROP_DRAWS)
        draws = uniforms(seed, Stream.AUGMENT, epoch, indices, count=BATCH_DRAWS)
        rejected: dict[int, str] = {}
        images, failure = torch.empty(0), None
        try:
            images = self._images(indices, crops, rejected)
        except BadImage as error:
            failure = str(error)
        return Batch(
            images=images,
            draws=torch.from_numpy(draws).float(),
            indices=torch.from_numpy(indices),
            epoch=epoch,
            place=place,
            rejected=rejected,
            failure=failure,
            beside=None if self.beside is None else self.beside(epoch, place, self.share),
        )

    def _images(
        self, indices: NDArray[np.int64], draws: NDArray[np.float64], rejected: dict[int, str]
    ) -> Tensor:
        """Random crops of the samples; notes in `rejected` which of them cannot be used."""
        shape = (len(indices), *self.image_size, self.channels)
        images = torch.empty(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
        for image, index, row in zip(images.split(1), indices.tolist(), draws, strict=True):
            self._first_usable(index, partial(self._crop_into, image, row), rejected)
        return images

    def _crop_into(self, image: Tensor, draws: NDArray[np.float64], index: int) -> None:
        self._crop(self.source.read(index), draws, image)

    def _first_usable(
        self, index: int, use: Callable[[int], None], rejected: dict[int, str]
    ) -> int:
        """Uses the sample, or the next one that can be used, and says which."""
        tries = min(_MOST_REPLACEMENTS, len(self.source))
        for step in range(tries):
            candidate = (index + step) % len(self.source)
            try:
                use(candidate)
            except (BadImage, OSError) as error:
                rejected[candidate] = str(error)
            else:
                return candidate
        raise BadImage(
            f"{tries} images in a row cannot be used; the first is {self.source.name(index)}: "
            f"{rejected[index]}"
        )


class Boxes(Batches):
    """The same, but for the pixels: which box of which image, (b, 5), for whoever has them."""

    def __init__(self, batches: Batches, held: OnDevice) -> None:
        self.__dict__.update(batches.__dict__)
        self.sizes, self.unusable = held.sizes, held.rejected

    def _images(
        self, indices: NDArray[np.int64], draws: NDArray[np.float64], rejected: dict[int, str]
    ) -> Tensor:
        if self.unusable:
            indices = np.array(
                [self._first_usable(i, self._check, rejected) for i in indices.tolist()]
            )
        boxes = random_crops(self.sizes[indices], draws, self.crop_scale)
        return torch.from_numpy(np.column_stack([indices, boxes]))

    def _check(self, index: int) -> None:
        if (reason := self.unusable.get(index)) is not None:
            raise BadImage(reason)


@dataclass(frozen=True, slots=True)
class DeviceBatches:
    """Batches of a set that lies decoded on a device, where they are cropped, each at once."""

    boxes: Boxes
    held: OnDevice

    def finish(self, batch: Batch) -> Batch:
        if batch.failure is not None:
            return batch
        return batch._replace(images=self.held.crop(batch.images, self.boxes.image_size))


def hold(
    batches: Batches,
    place: Place,
    device: torch.device,
    *,
    limit: float = math.inf,
    progress: Progress | None = None,
) -> Batches | DeviceBatches:
    """The same batches of a set that is decoded first, and kept in memory or on the device.

    limit: bytes; `TooLarge` is raised where they do not suffice.
    """
    if place == "none" or (place == "ram" and isinstance(batches.source, MemorySource)):
        return batches
    held = Held(batches.source, batches.channels, limit=limit, progress=progress)
    if place == "device":
        on_device = held.to(device)
        return DeviceBatches(Boxes(batches, on_device), on_device)
    kept = copy.copy(batches)
    kept.source = held
    return kept


class _Posted(Dataset[Parcel]):
    """Batches on their way to another process."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __getitem__(self, step: int) -> Parcel:
        return Parcel(self._batches[step])


def heed_no_signal(_: int) -> None:
    """In a worker: what stops a whole group of processes is for the one that trains.

    It saves first, and needs batches until then; workers go when it is done or gone.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def load(
    batches: Batches | DeviceBatches,
    steps: range,
    *,
    workers: int = 0,
    timed: Callable[[Iterable[Batch | Parcel]], Iterable[Batch | Parcel]] = iter,
) -> Iterator[Batch]:
    """The batches of some steps in turn, prepared ahead by worker processes.

    timed: takes what workers prepare and gives it again, to know how long it is waited for. Crops
    on a device are none of it: who gives too much to a GPU waits there too.
    """
    made = batches.boxes if isinstance(batches, DeviceBatches) else batches
    loader: DataLoader[Batch | Parcel] = DataLoader(
        _Posted(made) if workers else made,
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=heed_no_signal,
    )
    for batch in timed(loader):
        whole = batch.open() if isinstance(batch, Parcel) else batch
        yield batches.finish(whole) if isinstance(batches, DeviceBatches) else whole
