"""A folder of images of any depth. Where the first level is folders, their names are the labels."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp"})


class FolderSource:
    """Every image file below `root`, in sorted order, so that an index means the same anywhere."""

    def __init__(self, root: Path) -> None:
        if not root.exists():
            raise ValueError(f"{root}: no such folder")
        if not root.is_dir():
            raise ValueError(f"{root} is a file: expected a folder of images")
        self.root = root
        self.paths = _images_below(root)
        if not self.paths:
            kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
            raise ValueError(f"{root} holds no images: expected files of type {kinds}")
        first = [path.partition(os.sep) for path in self.paths]
        self.classes: list[str] = []
        self.labels: NDArray[np.int64] | None = None
        if all(rest for _, _, rest in first):
            self.classes = sorted({name for name, _, _ in first})
            number = {name: place for place, name in enumerate(self.classes)}
            self.labels = np.array([number[name] for name, _, _ in first], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()

    def name(self, index: int) -> str:
        return self.paths[index]


def _images_below(root: Path) -> list[str]:
    """Relative paths of images; links to folders are followed once, loops are not entered."""
    seen: set[tuple[int, int]] = set()
    found: list[str] = []
    for folder, below, files in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (place := (status.st_dev, status.st_ino)) in seen:
            below.clear()
            continue
        seen.add(place)
        below.sort()
        relative = os.path.relpath(folder, root)
        for file in files:
            if os.path.splitext(file)[1].lower() in SUFFIXES and not file.startswith("."):
                found.append(os.path.normpath(os.path.join(relative, file)))
    return sorted(found)
