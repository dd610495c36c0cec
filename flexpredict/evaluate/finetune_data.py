"""The labelled images that fine-tuning trains and tests on."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flexpredict.data.augment import CROP_DRAWS
from flexpredict.data.loader import Order, heed_no_signal
from flexpredict.data.randaugment import RandAugment
from flexpredict.data.random import Stream, uniforms
from flexpredict.data.sources import Source
from flexpredict.data.transforms import RandomTransform, Transform, read_pixels
from flexpredict.evaluate.finetune_settings import RAND_AUGMENT, FinetuneSettings
from flexpredict.evaluate.mixing import ERASING_DRAWS, erasing_boxes
from flexpredict.model.vit import Encoder

TEST_CHUNK = 256


class Batch(NamedTuple):
    images: Tensor  # (b, c, H, W) uint8
    labels: Tensor  # (b,)
    boxes: Tensor  # (b, 4) to be erased
    failure: str | None  # why there is no batch; said here, since a worker cannot raise in one line


class TrainingBatches(Dataset[Batch]):
    """The labelled images of any step: cropped, flipped, distorted."""

    def __init__(
        self,
        source: Source,
        labels: NDArray[np.int64],
        rows: NDArray[np.int64],
        order: Order,
        settings: FinetuneSettings,
        encoder: Encoder,
        size: tuple[int, int],
    ) -> None:
        self.source, self.labels, self.rows, self.order = source, labels, rows, order
        self.size, self.channels = size, encoder.in_channels
        self.erasing = settings.random_erasing
        self.transform = RandomTransform(
            settings.crop_scale, flip=settings.flip, interpolation="bicubic"
        )
        self.mean = tuple(encoder.mean.flatten().tolist())
        self.policy: RandAugment | None = None
        if settings.randaugment:
            text = RAND_AUGMENT if settings.randaugment is True else settings.randaugment
            self.policy = RandAugment.parse(text)

    def __getitem__(self, step: int) -> Batch:
        epoch, start = self.order.epoch_and_place(step)
        rows = self.rows[self.order.indices(epoch, start, self.order.batch_size)]
        seed, distortions = self.order.seed, self.policy.draws if self.policy else 0
        crops = uniforms(seed, Stream.CROP, epoch, rows, count=CROP_DRAWS + 1)
        rest = uniforms(seed, Stream.AUGMENT, epoch, rows, count=distortions + ERASING_DRAWS)
        images, failure = np.empty((len(rows), *self.size, self.channels), np.uint8), None
        try:
            for image, row, crop, draws in zip(images, rows, crops, rest, strict=True):
                pixels = read_pixels(self.source, int(row), self.channels)
                view = self.transform(pixels, self.size, crop)
                if self.policy is not None:
                    view = self.policy(view, draws[:distortions], self.mean)
                image[:] = view
        except ValueError as error:
            failure = str(error)
        boxes = erasing_boxes(rest[:, distortions:], self.size, self.erasing)
        return Batch(
            torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            torch.from_numpy(self.labels[rows]),
            torch.from_numpy(boxes),
            failure,
        )


class TestBatches(Dataset[Batch]):
    """Test images in order, chunk by chunk: resized, the middle cut out."""

    def __init__(self, source: Source, channels: int, size: tuple[int, int], margin: float) -> None:
        self.source, self.channels, self.size = source, channels, size
        self.transform = Transform("crop", margin, "bicubic")

    def __getitem__(self, chunk: int) -> Batch:
        rows = range(chunk * TEST_CHUNK, min((chunk + 1) * TEST_CHUNK, len(self.source)))
        images, failure = np.empty((len(rows), *self.size, self.channels), np.uint8), None
        try:
            for image, row in zip(images, rows, strict=True):
                image[:] = self.transform(read_pixels(self.source, row, self.channels), self.size)
        except ValueError as error:
            failure = str(error)
        nothing = torch.empty(0)
        return Batch(
            torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), nothing, nothing, failure
        )


def load(batches: Dataset[Batch], places: range, workers: int) -> Iterator[Batch]:
    """Batches in turn, prepared ahead by worker processes."""
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=places,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=heed_no_signal,
    )
    for batch in loader:
        if batch.failure is not None:
            raise ValueError(batch.failure)
        yield batch
