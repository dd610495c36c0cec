"""What each named task is: which data, through which transforms, for how many epochs.

A conflict between the sources of a protocol is a variant: `cifar100` and `cifar100@crop`. The sizes
are those of the encoder; what is published at 224 of 256 pixels keeps that proportion.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flexpredict.data.sources import Progress, Source, open_source
from flexpredict.data.sources.folder import parts_of
from flexpredict.data.sources.named import NAMES
from flexpredict.data.sources.subset import SubsetSource
from flexpredict.data.transforms import RandomTransform, Transform
from flexpredict.evaluate.labels import held_out, match_labels
from flexpredict.evaluate.linear import TENTHS, Schedule

_MARGIN = 256 / 224
_CROPS = RandomTransform()
_BICUBIC_CROPS = RandomTransform(interpolation="bicubic")
_WHOLE = RandomTransform(crop_scale=None)
_MIDDLE = RandomTransform(crop_scale=None, fit="crop")
_PLAIN = Transform()
_TEST_SHARE = 0.2  # of a labelled folder that has no test part


@dataclass(frozen=True, slots=True)
class Task:
    """How images are seen, and the schedule of the released SGD recipe (spec 3.1 and 3.3)."""

    layout: str | None
    train: RandomTransform = _CROPS
    test: Transform = _PLAIN
    schedule: Schedule = TENTHS
    labels: str = "all"  # the label budget unless another is asked for


FOLDER = Task(None)
TASKS = {
    "imagenet": Task(
        "imagenet", _BICUBIC_CROPS, Transform(margin=_MARGIN, interpolation="bicubic")
    ),
    # Spec 3.2: a typo in the released script means 256 is never used. MSN's has it.
    "imagenet-1%": Task("imagenet", labels="1percent.txt"),
    "imagenet-1%@msn": Task("imagenet", test=Transform(margin=_MARGIN), labels="1percent.txt"),
    # Spec 3.3: the text and the base configuration resize; the configurations without a class
    # token crop.
    "cifar100": Task("cifar100", _WHOLE),
    "cifar100@crop": Task(
        "cifar100", _BICUBIC_CROPS, Transform(margin=_MARGIN, interpolation="bicubic")
    ),
    "cifar10": Task("cifar10", _WHOLE),
    "places205": Task("places205", _CROPS, Transform(margin=_MARGIN), Schedule(14, (4, 8, 12))),
    # The L configuration is bicubic, that of H is not.
    "inat18": Task(
        "inat18",
        _BICUBIC_CROPS,
        Transform(margin=_MARGIN, interpolation="bicubic"),
        Schedule(84, (24, 48, 72)),
    ),
    "inat18@bilinear": Task(
        "inat18", _CROPS, Transform(margin=_MARGIN), Schedule(84, (24, 48, 72))
    ),
    # The configuration squashes; the text of the I-JEPA paper speaks of a centre crop.
    "clevr-count": Task("clevr-count", _WHOLE, Transform("squash"), Schedule(50, cosine_to=0.01)),
    "clevr-count@crop": Task("clevr-count", _MIDDLE, _PLAIN, Schedule(50, cosine_to=0.01)),
    "clevr-dist": Task("clevr-dist", _WHOLE, Transform("squash"), Schedule(100, cosine_to=0.01)),
    "clevr-dist@crop": Task("clevr-dist", _MIDDLE, _PLAIN, Schedule(100, cosine_to=0.01)),
    "tiny-imagenet": Task("tiny-imagenet"),
    "scenes-count": Task("scenes-count", _WHOLE, Transform("squash")),
    "scenes-dist": Task("scenes-dist", _WHOLE, Transform("squash")),
    "scenes-class": Task("scenes-class", _WHOLE, Transform("squash")),
}
VIDEO_TASKS: dict[str, Literal["2016", "2017"]] = {
    "davis2017": "2017",
    "davis2016": "2016",
    "scenes-video": "2017",
}


@dataclass(frozen=True, slots=True)
class Labelled:
    """A task with its data: training and test images with labels 0, 1, …"""

    name: str
    task: Task
    train: Source
    test: Source
    train_labels: Tensor
    test_labels: Tensor
    classes: int
    labels: str  # the label budget unless another is asked for
    data: str = ""  # where the images are, if they are not those of a named task


def open_task(
    name: str | None = None,
    *,
    data: str | Path | None = None,
    train: str | Path | None = None,
    test: str | Path | None = None,
    listed: bool = True,
    image_size: int = 64,
    progress: Progress | None = None,
) -> Labelled:
    """A named task below the folder `data`, or any labelled images.

    Without a name: `train` and `test`, or `data` alone: a folder with train/ and val/ or test/, a
    packed file, or a folder of classes or `NAME:SPLIT`, of which a fifth is then held back for the
    test.
    listed: whether a task's own list of labelled images is needed, as no other budget is asked for.
    """
    if (train is None) != (test is None) or (train is not None and (name or data)):
        raise ValueError("--train and --test go together, and without --task and --data")
    if name is not None:
        task = _named(name)
        assert task.layout is not None
        if data is None and not name.startswith("scenes-"):
            raise ValueError(f"task {name} needs its data: say where they are with --data")
        pair = [
            open_source(
                data, layout=task.layout, split=split, image_size=image_size, progress=progress
            )
            for split in ("train", "test")
        ]
        budget = task.labels
        if budget.endswith(".txt") and listed:  # it comes beside the images
            assert data is not None
            budget = str(Path(data).expanduser() / budget)
            if not Path(budget).is_file():
                raise ValueError(
                    f"task {name} needs the published list {task.labels} in {data}; another "
                    f"budget can be asked for with --labels"
                )
        other = ""
        if data is not None and (name.startswith("scenes-") or Path(data).expanduser().is_file()):
            other = _resolved(data)  # a task may be in several files
        return _labelled(name, task, pair[0], pair[1], budget, other)
    if train is not None and test is not None:
        pair = [open_source(part, image_size=image_size) for part in (train, test)]
        both = f"{_resolved(train)}, tested on {_resolved(test)}"
        return _labelled(_called(_resolved(train)), FOLDER, pair[0], pair[1], "all", both)
    if data is None:
        raise ValueError("no images were named: give --task, --data, or --train and --test")
    where = _resolved(data)
    stem = _called(where)
    if str(data).endswith(".npz") or str(data) in NAMES:
        pair = [open_source(f"{data}:{split}") for split in ("train", "val")]
        return _labelled(stem, FOLDER, pair[0], pair[1], "all", where)
    root = Path(data).expanduser()
    if (parts := parts_of(root)) is not None:
        pair = [open_source(part) for part in parts]
        return _labelled(stem, FOLDER, pair[0], pair[1], "all", where)
    whole = open_source(root if root.exists() else data)  # or `NAME:SPLIT`
    kept, held = held_out(labels_of(whole, str(root)), _TEST_SHARE, 0)
    if not len(held):
        raise ValueError(
            f"{root} has one image per class, so none is left to test on: give --test as well"
        )
    pair = [SubsetSource(whole, kept), SubsetSource(whole, held)]
    return _labelled(stem, FOLDER, pair[0], pair[1], "all", where)


def _resolved(data: str | Path) -> str:
    given = Path(data).expanduser()
    return str(given.resolve() if given.exists() else given)  # or the name of a set


def _called(where: str) -> str:
    """What a person would call a folder: its name, or that of the folder its parts are in."""
    path = Path(where)
    inner = path.name in ("train", "val", "test") and path.parent.name
    return path.parent.name if inner else path.name.removesuffix(".npz") or "data"


def _named(name: str) -> Task:
    if name in VIDEO_TASKS:
        raise ValueError(f"task {name} is about video: use `flexpredict video`")
    if name not in TASKS:
        raise ValueError(f"task {name!r} is not known: choose one of {', '.join(TASKS)}")
    return TASKS[name]


def _labelled(
    name: str, task: Task, train: Source, test: Source, budget: str, data: str = ""
) -> Labelled:
    train_labels, test_labels = (
        labels_of(train, "the training set"),
        labels_of(test, "the test set"),
    )
    # Numbers of objects and bins of distances are classes that a small set need not have.
    if not name.startswith(("clevr-", "scenes-")):
        _check_classes(_present(train, train_labels), _present(test, test_labels))
        train_labels, test_labels, _ = match_labels(train, test)
    classes = max(len(train.classes), int(train_labels.max()) + 1, int(test_labels.max()) + 1)
    pair = torch.from_numpy(train_labels), torch.from_numpy(test_labels)
    return Labelled(name, task, train, test, *pair, classes, budget, data)


def _present(source: Source, labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> set[str]:
    """The classes that have an image."""
    known = np.unique(labels)
    return {source.classes[label] if source.classes else str(label) for label in known}


def _check_classes(train: set[str], test: set[str]) -> None:
    for one, other, where in (
        (train, test, "the training set, but is missing from the test set"),
        (test, train, "the test set, but is missing from the training set"),
    ):
        if missing := sorted(one - other):
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise ValueError(f"class {missing[0]}{more} is in {where}: give both the same classes")


def labels_of(source: Source, what: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if source.labels is None:
        raise ValueError(f"{what} has no labels: expected one folder of images per class")
    if len(source.labels) != len(source):
        raise ValueError(f"{what} has {len(source)} images, but {len(source.labels)} labels")
    return source.labels
