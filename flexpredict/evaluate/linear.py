"""Linear probes: a grid of heads trained jointly in one pass over the features.

Protocol `default` selects a head on a held-out part of the training set, trains it again on all of
it and touches the test set once. The others follow released recipes: they take the best head on
the test set, and their results say so.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flexpredict.engine.precision import fast_products
from flexpredict.evaluate.heads import Head, Heads, Optimizer

# Features of all layers asked for, side by side in depth order, and labels.
Batch = tuple[Tensor, Tensor]
Epochs = Callable[[int], Iterable[Batch]]  # the batches of an epoch
_AT_ONCE = 4096  # test images


@dataclass(frozen=True, slots=True)
class Schedule:
    """The factor on the learning rate, changed from epoch to epoch."""

    epochs: int
    milestones: tuple[int, ...] = ()  # a tenth from each of these epochs on
    cosine_to: float | None = None  # or a cosine from 1 to this share

    def factor(self, epoch: int) -> float:
        if self.cosine_to is not None:
            progress = epoch / self.epochs
            return self.cosine_to + (1 - self.cosine_to) * 0.5 * (1 + math.cos(math.pi * progress))
        return 0.1 ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How probes are trained and which of them counts."""

    name: str
    heads: tuple[Head, ...]  # lr per 256 images
    schedule: Schedule
    batch_size: int = 256
    optimizer: Optimizer = "sgd"
    select: str = "held-out"  # or "test"
    augment: bool = False  # whether training images are seen through random crops

    @property
    def note(self) -> str:
        if self.select == "test":
            return "the best head was chosen on the test set, as in the released recipe"
        return "the head was chosen on a held-out part of the training set; test was touched once"


def grid(
    lr: Sequence[float],
    weight_decay: Sequence[float],
    layers: Sequence[int] = (1, 4),
) -> tuple[Head, ...]:
    combinations = itertools.product(lr, weight_decay, layers, (True, False))  # batch norm
    return tuple(Head(*combination) for combination in combinations)


TENTHS = Schedule(28, (8, 16, 24))
_FIFTEENS = Schedule(50, (15, 30, 45))
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "default",
            grid(lr=(0.01, 0.1, 1.0), weight_decay=(0.0, 5e-4)),
            Schedule(30, cosine_to=0.0),
        ),
        # Spec 3.1: B and L as released.
        Protocol("vissl-sgd", grid((0.01,), (5e-4,)), TENTHS, select="test", augment=True),
        # Spec 3.1: the H configuration, 16 heads.
        Protocol(
            "vissl-lars",
            grid((0.1, 0.01), (5e-4, 0.0)),
            _FIFTEENS,
            batch_size=16_384,
            optimizer="lars",
            select="test",
            augment=True,
        ),
        # Spec 3.1: the text of the I-JEPA paper. Whether its rates are per 256 images is not said;
        # taken so here, as everywhere else.
        Protocol(
            "ijepa",
            grid((0.01, 0.05, 0.001), (5e-4, 0.0)),
            _FIFTEENS,
            batch_size=16_384,
            optimizer="lars",
            select="test",
            augment=True,
        ),
    )
}


class JointHeads:
    """Heads of any kind on features of several layers side by side, trained together."""

    def __init__(
        self,
        heads: Sequence[Head],
        dim: int,  # of one layer
        classes: int,
        *,
        optimizer: Optimizer = "sgd",
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.heads, self.dim = list(heads), dim
        generator = torch.Generator(device).manual_seed(seed)
        self._places: list[list[int]] = []
        self.groups: list[Heads] = []
        for layers in sorted({head.layers for head in heads}):
            places = [place for place, head in enumerate(heads) if head.layers == layers]
            places.sort(key=lambda place: not heads[place].batch_norm)
            self._places.append(places)
            self.groups.append(
                Heads(
                    [heads[place] for place in places],
                    dim * layers,
                    classes,
                    optimizer=optimizer,
                    generator=generator,
                )
            )

    def step(self, features: Tensor, labels: Tensor, lr: float) -> None:
        for group in self.groups:
            group.step(self._of(group, features), labels, lr)

    def accuracies(self, batches: Iterable[Batch]) -> list[float]:
        """Of every head, in percent."""
        right, total = torch.zeros(len(self.heads), dtype=torch.float64), 0
        for features, labels in batches:
            total += len(labels)
            for group, places in zip(self.groups, self._places, strict=True):
                found = group.predict(self._of(group, features)) == labels
                right[places] += found.sum(1).cpu()
        return (100 * right / total).tolist()

    def _of(self, group: Heads, features: Tensor) -> Tensor:
        """The last layers stand last."""
        return features[:, features.shape[1] - self.dim * group.heads[0].layers :]


def train_heads(
    heads: Sequence[Head],
    epochs: Epochs,
    *,
    schedule: Schedule,
    batch_size: int,
    dim: int,
    classes: int,
    optimizer: Optimizer = "sgd",
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> JointHeads:
    """The heads after all epochs. Their rates are per 256 images, scaled to the batch size."""
    joint = JointHeads(heads, dim, classes, optimizer=optimizer, seed=seed, device=device)
    for epoch in range(schedule.epochs):
        lr = schedule.factor(epoch) * batch_size / 256
        for features, labels in epochs(epoch):
            with fast_products(device):  # for the heads alone: features are not theirs to round
                joint.step(features, labels, lr)
        if progress is not None:
            progress(epoch + 1, schedule.epochs)
    return joint


def shuffled(features: Tensor, labels: Tensor, batch_size: int, seed: int) -> Epochs:
    """Cached features in another order every epoch; what does not fill a batch is left out."""
    size = min(batch_size, len(labels))

    def epoch_batches(epoch: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(labels), generator=generator).to(features.device)
        for start in range(0, len(labels) - size + 1, size):
            rows = order[start : start + size]
            yield features[rows], labels[rows]

    return epoch_batches


def in_order(features: Tensor, labels: Tensor) -> Iterator[Batch]:
    for start in range(0, len(labels), _AT_ONCE):
        yield features[start : start + _AT_ONCE], labels[start : start + _AT_ONCE]
