"""Image files with given paths, labels and classes."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class PathSource:
    """Images that are files: whoever finds the paths, this reads them."""

    root: Path
    paths: Sequence[str]  # below `root`, or absolute
    labels: NDArray[np.int64] | None
    classes: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()

    def name(self, index: int) -> str:
        return self.paths[index]

    def stamp(self) -> str | None:
        return stamp_of_files(self.root, self.paths)


class FileSource(PathSource):
    """The image files `paths` below `root`, in the order given."""

    def __init__(
        self,
        root: Path,
        paths: list[str],
        labels: Sequence[int] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        # Lists come from elsewhere: none may lead out of the folder that the user named.
        outside = next((p for p in paths if p.startswith("/") or ".." in p.split("/")), None)
        if outside is not None:
            raise ValueError(f"{outside} leads out of {root}: expected paths below that folder")
        assert labels is None or len(labels) == len(paths)
        self.root = root
        self.paths = paths
        self.labels = None if labels is None else np.array(labels, dtype=np.int64)
        self.classes = classes or []


def stamp_of_files(root: Path, paths: Iterable[str]) -> str:
    """A digest of places, sizes and times: a moved, renamed, edited or lost file alters it."""
    digest = hashlib.sha256(str(root.resolve()).encode(errors="surrogateescape"))
    for path in paths:
        try:
            status = os.stat(root / path)
            # The time of the last change of any kind cannot be set to an earlier one.
            state = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
        except OSError:
            state = "missing"
        digest.update(f"{path}\0{state}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()
