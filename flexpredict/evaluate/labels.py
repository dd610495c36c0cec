"""Labels: which training images may show theirs, and one numbering for two sets of images."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.random import Stream, uniforms
from flexpredict.data.sources import Source
from flexpredict.data.sources.identity import class_names

Rows = NDArray[np.int64]
# The published ImageNet 1 % list: 12,811 images, 12 or 13 of each class (spec 3.2).
PUBLISHED_LIST = "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"

_SEVERAL = -1


@dataclass(frozen=True, slots=True)
class Budget:
    """`all`, a share such as `1%` or `0.01`, `13/class`, or a file that lists names of images."""

    text: str
    share: float | None = None
    per_class: int | None = None
    names: frozenset[str] | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether another seed gives other images."""
        return self.share is not None or self.per_class is not None

    @classmethod
    def parse(cls, text: str | float) -> "Budget":
        text = str(text).strip()
        if text == "all":
            return cls(text)
        if match := re.fullmatch(r"(\d+) */ *class", text):
            if int(match[1]):
                return cls(text, per_class=int(match[1]))
        elif re.fullmatch(r"[0-9.]+ *%?", text):
            percent = text.endswith("%")
            try:
                share = float(text.rstrip("% ")) / (100 if percent else 1)
            except ValueError:
                share = 0.0
            if 0 < share <= 1:
                return cls(text, share=share)
        elif Path(text).is_file():
            content = Path(text).read_bytes()
            lines = content.decode(errors="replace").splitlines()
            names = frozenset(line.strip() for line in lines if line.strip())
            known = hashlib.sha256(content).hexdigest() == PUBLISHED_LIST
            return cls("published 1% list" if known else f"list {Path(text).name}", names=names)
        raise ValueError(
            f"labels={text!r}: expected all, a share such as 1% or 0.01, a number per class such "
            f"as 13/class, or a file that lists names of images"
        )

    def rows(self, source: Source, labels: NDArray[np.int64], seed: int = 0) -> Rows:
        """The rows of the images that keep their label, in order, at least one of each class."""
        if self.names is not None:
            return self._listed(source)
        if self.share is None and self.per_class is None:
            return np.arange(len(labels))
        order = np.argsort(uniforms(seed, Stream.LABELS, np.arange(len(labels)), count=1)[:, 0])
        chosen, classes = [], np.unique(labels)
        if self.share is not None and self.share * len(labels) < len(classes) / 2:
            raise ValueError(
                f"labels={self.text} is less than an image of each of the {len(classes)} classes: "
                f"ask for 1/class"
            )
        for label in classes:
            members = order[labels[order] == label]
            if self.share is not None:
                count = max(1, round(self.share * len(members)))
            else:
                assert self.per_class is not None
                count = self.per_class
            if count > len(members):
                raise ValueError(
                    f"labels={self.text}: class {label} has only {len(members)} training images"
                )
            chosen.append(members[:count])
        return np.sort(np.concatenate(chosen))

    def _listed(self, source: Source) -> Rows:
        """By the whole name below the root, or by the file's own name where that is enough."""
        assert self.names is not None
        place: dict[str, int] = {}
        for row in range(len(source)):
            short = Path(source.name(row)).name
            place[short] = _SEVERAL if short in place else row
        place |= {source.name(row): row for row in range(len(source))}
        if unclear := [name for name in self.names if place.get(name) == _SEVERAL]:
            raise ValueError(
                f"the {self.text} names {min(unclear)}, but several images have that name: give "
                f"names with their folders"
            )
        missing = [name for name in self.names if name not in place]
        if missing:
            raise ValueError(
                f"the {self.text} names {len(missing)} images that are not in the training set, "
                f"such as {min(missing)}"
            )
        return np.unique([place[name] for name in self.names]).astype(np.int64)


def held_out(labels: NDArray[np.int64], share: float, seed: int = 0) -> tuple[Rows, Rows]:
    """Rows to keep and rows to hold out, the share of every class, at least one kept of each."""
    order = np.argsort(uniforms(seed, Stream.HELD_OUT, np.arange(len(labels)), count=1)[:, 0])
    held = []
    for label in np.unique(labels):
        members = order[labels[order] == label]
        held.append(members[: min(max(1, round(share * len(members))), len(members) - 1)])
    out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), out), out


def match_labels(train: Source, test: Source) -> tuple[Rows, Rows, list[str]]:
    """Labels of both sets under one numbering, that of the training set, and its classes."""
    if train.labels is None or test.labels is None:
        which = "training" if train.labels is None else "test"
        raise ValueError(
            f"the {which} images have no labels: expected one folder for each class, or labels "
            f"beside the images"
        )
    train_labels, test_labels = train.labels, test.labels
    classes = class_names(train)
    if train.classes and test.classes and train.classes != test.classes:
        # A class without a test image shifts the numbers of a folder's labels: names decide.
        number = {name: place for place, name in enumerate(train.classes)}
        used = [test.classes[label] for label in np.unique(test_labels)]
        if unknown := [name for name in used if name not in number]:
            raise ValueError(f"test images of class {unknown[0]!r}, which training does not have")
        test_labels = np.array([number.get(name, -1) for name in test.classes])[test_labels]
    if test_labels.max() >= len(classes):
        raise ValueError(
            f"test images of class {test_labels.max()}, but training has only the classes 0 to "
            f"{len(classes) - 1}"
        )
    return train_labels, test_labels, classes
