"""A folder of images of any depth. Where the first level is folders, their names are the labels."""

import os
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.base import Progress
from flexpredict.data.sources.files import PathSource
from flexpredict.data.sources.index import (
    ABSENT,
    FolderIndex,
    State,
    folder_state,
    index_path,
    open_index,
    write_index,
)
from flexpredict.notice import Notice

SUFFIXES = frozenset(
    {
        ".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".tif", ".tiff", ".gif", ".bmp", ".ppm",
        ".pgm", ".jp2",
    }
)  # fmt: skip
# Pictures that cannot be read here. Other files, as lists and notes, are nobody's loss.
_UNREADABLE = frozenset(
    {
        ".heic", ".heif", ".jxl", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2",
        ".raf", ".psd", ".svg", ".dcm", ".exr", ".hdr",
    }
)  # fmt: skip

INDEX_FROM = 10_000  # images; fewer are found again about as fast as an index is opened


class FolderSource(PathSource):
    """Every image file below `root`, in sorted order, so that an index means the same anywhere.

    Large folders are walked once: then their paths, labels and classes come from a file in the
    cache, for as long as no folder below has changed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if (index := open_index(root)) is None:
            walk = walk_images(root)
            if len(walk.paths) >= INDEX_FROM:
                # An index only saves time: where the cache cannot be written, there is none.
                with suppress(OSError, ValueError):
                    index = _write(root, walk)
        if index is None:
            self.paths = walk.paths
            self.labels, self.classes = _first_level(walk.paths)
        else:
            self._use(index)
        if left_out := walk.left_out if index is None else index.left_out:
            warnings.warn(
                f"{root} has {len(self.paths):,} files of kinds that are read; left out are "
                f"{left_out}: to use them too, convert them",
                Notice,
                stacklevel=2,
            )

        if (parts := parts_of(root)) is not None:
            train, test = parts
            warnings.warn(
                f"{root} is taken as one set, all of {train.name}/ and {test.name}/ in it: name "
                f"{train} to leave the others for tests",
                Notice,
                stacklevel=2,
            )

    def _use(self, index: FolderIndex) -> None:
        self.paths, self.labels, self.classes = index, index.labels, index.classes

    def __getstate__(self) -> dict[str, Any]:
        # Labels and classes are in the index: a worker process maps them as it maps the paths.
        indexed = isinstance(self.paths, FolderIndex)
        return {"root": self.root, "paths": self.paths} if indexed else vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.paths, FolderIndex):
            self._use(self.paths)


def parts_of(root: Path) -> tuple[Path, Path] | None:
    """The folders for training and test of one that has both: these are no classes."""
    tests = [root / part for part in ("val", "test") if (root / part).is_dir()]
    return (root / "train", tests[0]) if (root / "train").is_dir() and tests else None


def index_folder(root: Path, progress: Progress | None = None) -> FolderIndex:
    """Walk a folder of any size and write its index anew.

    While it walks nobody knows how many there are: `progress` is told twice what was found so far.
    """
    walk = walk_images(root, progress)
    try:
        return _write(root, walk)
    except OSError as error:
        raise ValueError(
            f"the index of {root} cannot be written to {index_path(root).parent} "
            f"({error.strerror}): set FLEXPREDICT_CACHE to a folder that can be written"
        ) from None


class Walk(NamedTuple):
    """What was found below a folder, and what tells whether that may have changed."""

    paths: list[str]
    folders: dict[str, State]
    walked_ns: int
    left_out: str  # pictures that cannot be read, in words


def images_below(root: Path) -> list[str]:
    """Relative paths of images; links to folders are followed once, loops are not entered."""
    return walk_images(root).paths


_TELL_EVERY = 2.0  # seconds


def walk_images(root: Path, progress: Progress | None = None) -> Walk:
    """The images below a folder, sorted, and the state of its folders before they were read."""
    if not root.exists():
        here = "" if root.is_absolute() else f" in {Path.cwd()}"
        raise ValueError(f"{root}: no such folder{here}")
    if not root.is_dir():
        raise ValueError(
            f"{root} is a file: expected a folder of images, a list (.txt, .csv), shards (.tar) or "
            f"a packed file (.npz)"
        )
    walked_ns, told = time.time_ns(), time.monotonic()
    seen: set[tuple[int, int]] = set()
    found: list[str] = []
    unreadable: Counter[str] = Counter()
    folders = {"": folder_state(root)}
    for folder, below, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (place := (status.st_dev, status.st_ino)) in seen:
            below.clear()
            continue
        seen.add(place)
        below.sort()
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == os.curdir else f"{relative}{os.sep}"
        for name in below:  # also those that cannot be read or were seen: this may change
            folders[prefix + name] = folder_state(os.path.join(folder, name))
        for file in files:
            if (suffix := os.path.splitext(file)[1].lower()) in SUFFIXES:
                if not file.startswith("."):
                    found.append(prefix + file)
            elif suffix in _UNREADABLE:
                unreadable[suffix] += not file.startswith(".")
            elif os.path.islink(path := os.path.join(folder, file)) and not os.path.exists(path):
                folders[prefix + file] = ABSENT  # a disk that is not mounted may come back
        if progress is not None and time.monotonic() > told + _TELL_EVERY:
            progress(len(found), len(found))
            told = time.monotonic()
    left_out = ", ".join(f"{n:,} {suffix}" for suffix, n in unreadable.most_common() if n)
    if not found:
        kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        also = f" (it has {left_out})" if left_out else ""
        raise ValueError(f"{root} holds no images{also}: expected files of type {kinds}")
    if progress is not None:
        progress(len(found), len(found))
    found.sort()
    return Walk(found, folders, walked_ns, left_out)


def _first_level(paths: list[str]) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Labels and classes by the first folder of each path; none if an image lies in no folder."""
    if not all(os.sep in path for path in paths):
        return None, []
    classes = sorted({path.partition(os.sep)[0] for path in paths})
    number = {name: place for place, name in enumerate(classes)}
    labels = (number[path.partition(os.sep)[0]] for path in paths)
    return np.fromiter(labels, np.int64, len(paths)), classes


def _write(root: Path, walk: Walk) -> FolderIndex:
    return write_index(
        index_path(root),
        walk.paths,
        *_first_level(walk.paths),
        folders=walk.folders,
        walked_ns=walk.walked_ns,
        left_out=walk.left_out,
    )
