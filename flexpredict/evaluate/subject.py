"""What every evaluation of an encoder on labelled images starts from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flexpredict.data.random import Stream, permute
from flexpredict.data.sources import Progress
from flexpredict.data.sources.subset import SubsetSource
from flexpredict.data.transforms import read_random_images
from flexpredict.engine.precision import Precision, autocast_frozen
from flexpredict.evaluate.features import cached, prefetched, size_for
from flexpredict.evaluate.labels import Budget, Rows
from flexpredict.evaluate.linear import Batch, Epochs
from flexpredict.evaluate.tasks import Labelled
from flexpredict.model.vit import Encoder, Resize, Size

Told = Callable[[str], Progress]  # progress of what is named
_LOOKS = 256  # images that are encoded at a time


@dataclass(frozen=True, slots=True)
class Subject:
    """The encoder under study, and how images get to it."""

    encoder: Encoder
    which: str = "target"
    image_size: Size | None = None
    resize: Resize = "recompute"
    told: Told | None = None
    precision: Precision = "auto"  # as in pretraining: bfloat16 on GPUs

    @property
    def device(self) -> torch.device:
        return self.encoder.pos_embed.device

    @property
    def variant(self) -> dict[str, Any]:
        """What differs from how encoders are looked at by default."""
        size = {} if self.image_size is None else {"image_size": self.image_size}
        return size | ({} if self.resize == "recompute" else {"resize": self.resize})

    def progress(self, what: str) -> Progress | None:
        return self.told(what) if self.told else None


@dataclass(frozen=True, slots=True)
class Draws:
    """A label budget, drawn once or several times."""

    budget: Budget
    seeds: list[int]
    rows: list[Rows]  # of each draw

    @classmethod
    def of(
        cls,
        task: Labelled,
        labels: str | float | None,
        seed: int,
        count: int,
        *,
        seeded: bool = False,  # whether a seed changes more than the budget
    ) -> "Draws":
        budget = Budget.parse(task.labels if labels is None else labels)
        if count > 1 and not (budget.is_drawn or seeded):
            raise ValueError(
                f"draws={count}: labels={budget.text} gives the same images every time; ask for "
                f"a share or a number per class"
            )
        seeds = list(range(seed, seed + count))
        known = task.train_labels.numpy()
        return cls(budget, seeds, [budget.rows(task.train, known, draw) for draw in seeds])

    @property
    def variant(self) -> dict[str, Any]:
        seed = {} if self.seeds[0] == 0 else {"seed": self.seeds[0]}
        return seed | ({} if len(self.seeds) == 1 else {"draws": len(self.seeds)})


class TrainFeatures:
    """Features of the training images that some draw uses, and of no others."""

    def __init__(self, subject: Subject, task: Labelled, draws: Draws, layers: int) -> None:
        self._rows = np.unique(np.concatenate(draws.rows))
        source = task.train
        if len(self._rows) < len(source):
            source = SubsetSource(source, self._rows)
        self._features = _features(subject, task, source, "train features", layers)
        self._labels, self._device = task.train_labels, subject.device

    def of(self, rows: Rows) -> Batch:
        """Features and labels of some rows of the training set, on the encoder's device."""
        labels = self._labels[rows].to(self._device)
        if len(rows) == len(self._rows):
            return self._features.to(self._device), labels
        return self._features[np.searchsorted(self._rows, rows)].to(self._device), labels


def test_features(subject: Subject, task: Labelled, layers: int) -> Tensor:
    """Features of the test images; they stay in ordinary memory."""
    return _features(subject, task, task.test, "test features", layers)


def _features(subject: Subject, task: Labelled, source: Any, name: str, layers: int) -> Tensor:
    return cached(
        subject.encoder,
        source,
        layers=layers,
        image_size=subject.image_size,
        transform=task.task.test,
        resize=subject.resize,
        precision=subject.precision,
        progress=subject.progress(name),
    )


def looks(
    subject: Subject,
    task: Labelled,
    rows: Rows,
    layers: int,
    batch_size: int,
    seed: int,
) -> Epochs:
    """Features of another random look at the training images every epoch."""
    batch_size = min(batch_size, len(rows))
    dataset = _Looks(subject, task, seed)

    def epoch_batches(epoch: int) -> Iterator[Batch]:
        order = rows[permute(np.arange(len(rows)), len(rows), seed, Stream.ORDER, epoch)]
        starts = range(0, len(order) - batch_size + 1, batch_size)
        batches = [order[start : start + batch_size] for start in starts]
        parts = [
            (epoch, chunk)
            for some in batches
            for chunk in np.split(some, range(_LOOKS, len(some), _LOOKS))
        ]
        found: list[Tensor] = []
        waiting = iter(batches)
        for images in prefetched(dataset, parts):
            images = images.to(subject.device)
            with autocast_frozen(subject.device, subject.precision):
                encoded = subject.encoder.features(images, layers=layers, resize=subject.resize)
            found.append(encoded.float())
            if sum(map(len, found)) == batch_size:
                yield torch.cat(found), task.train_labels[next(waiting)].to(subject.device)
                found.clear()

    return epoch_batches


class _Looks(Dataset[Tensor | str]):
    """Random looks at images, made by worker processes; a string says why there is none."""

    def __init__(self, subject: Subject, task: Labelled, seed: int) -> None:
        self.source, self.transform, self.seed = task.train, task.task.train, seed
        self.size = size_for(subject.encoder, subject.image_size)
        self.channels = subject.encoder.in_channels

    def __getitem__(self, part: tuple[int, Rows]) -> Tensor | str:
        epoch, rows = part
        try:
            return read_random_images(
                self.source,
                rows,
                self.size,
                self.transform,
                self.channels,
                seed=self.seed,
                epoch=epoch,
            )
        except ValueError as error:  # a worker cannot raise in one line
            return str(error)
