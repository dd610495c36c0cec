"""A folder of images of any depth. Where the first level is folders, their names are the labels."""

import os
from pathlib import Path

from flexpredict.data.sources.files import FileSource

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".bmp"})


class FolderSource(FileSource):
    """Every image file below `root`, in sorted order, so that an index means the same anywhere."""

    def __init__(self, root: Path) -> None:
        paths = images_below(root)
        first = [path.partition(os.sep) for path in paths]
        if all(rest for _, _, rest in first):
            classes = sorted({name for name, _, _ in first})
            number = {name: place for place, name in enumerate(classes)}
            super().__init__(root, paths, [number[name] for name, _, _ in first], classes)
        else:
            super().__init__(root, paths)


def images_below(root: Path) -> list[str]:
    """Relative paths of images; links to folders are followed once, loops are not entered."""
    if not root.exists():
        raise ValueError(f"{root}: no such folder")
    if not root.is_dir():
        raise ValueError(f"{root} is a file: expected a folder of images")
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
    if not found:
        kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise ValueError(f"{root} holds no images: expected files of type {kinds}")
    return sorted(found)
