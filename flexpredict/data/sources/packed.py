"""Many small images in .npz files: encoded images end to end, with offsets, labels and splits.

jpeg    uint8, all files end to end; image i is jpeg[offset[i] : offset[i + 1]]
offset  int64, one more than there are images
label   integers, optional
split   0 for training and 1 for testing, optional
name    file names, optional
bbox    integers, four for each image, optional: x0, y0, x1, y1 of an object, in pixels
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.files import stamp_of_files

SPLITS = {"train": 0, "val": 1}

_Arrays = dict[str, NDArray[Any]]


class PackedSource:
    """The images of a packed file, or of several in sorted order; or those of one split."""

    def __init__(self, paths: Path | list[Path], split: str | None = None) -> None:
        self.paths = [paths] if isinstance(paths, Path) else sorted(paths)
        for path in self.paths:
            if not path.is_file():
                raise ValueError(f"{path}: no such file")
        # Taken before reading: a file changed meanwhile is then read again, not taken for known.
        places = [path.absolute() for path in self.paths]
        root = Path(os.path.commonpath([place.parent for place in places]))
        names = [str(place.relative_to(root)) for place in places]
        self._stamp = f"{stamp_of_files(root, names)}:{split or ''}"
        files = [_read(path) for path in self.paths]
        rows = [_rows(path, file, split) for path, file in zip(self.paths, files, strict=True)]
        self._file = np.repeat(np.arange(len(files)), [len(some) for some in rows])
        self._rows = np.concatenate(rows)
        more = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
        if not len(self):
            part = f" in its split {split}" if split else ""
            raise ValueError(f"{self.paths[0]}{more} has no images{part}")
        self._bytes = [file["jpeg"] for file in files]
        self._offset = [file["offset"] for file in files]
        self._names = [file.get("name") for file in files]
        self.labels: NDArray[np.int64] | None = None
        self.classes: list[str] = []
        labels = [file["label"] for file in files if "label" in file]
        if labels and len(labels) < len(files):
            raise ValueError(
                f"{len(labels)} of {len(files)} packed files from {self.paths[0]} on have labels: "
                f"expected them in all or in none"
            )
        if labels:
            # One part of a larger set has some of its labels: they are numbered anew, by value.
            known = np.unique(np.concatenate(labels))
            chosen = [label[some] for label, some in zip(labels, rows, strict=True)]
            self.labels = np.searchsorted(known, np.concatenate(chosen)).astype(np.int64)
            self.classes = [str(label) for label in known]
        self.boxes: NDArray[np.int64] | None = None  # (images, 4), where all files have them
        boxes = [
            file["bbox"][some] for file, some in zip(files, rows, strict=True) if "bbox" in file
        ]
        if len(boxes) == len(files):
            self.boxes = np.concatenate(boxes).astype(np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> bytes:
        file, row = self._file[index], self._rows[index]
        offset = self._offset[file]
        return self._bytes[file][offset[row] : offset[row + 1]].tobytes()

    def name(self, index: int) -> str:
        file, row = self._file[index], int(self._rows[index])
        names = self._names[file]
        if names is None:
            return f"{self.paths[file].name}, image {row}"
        name = names[row]
        return name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    def stamp(self) -> str | None:
        return self._stamp


def _read(path: Path) -> _Arrays:
    """The arrays of a packed file, which fit one another."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # damaged files make numpy and zipfile stumble in any way there is
        why = "it is none" if "pickle" in str(error) else error  # numpy's guess of a text file
        raise ValueError(f"{path} cannot be read as an .npz file: {why}") from None
    if not {"jpeg", "offset"} <= set(arrays):
        raise ValueError(
            f"{path} is no packed file of images: expected arrays jpeg and offset, "
            f"found {', '.join(arrays) or 'none'}"
        )
    for name in ("jpeg", "offset", "label", "split", "name", "bbox"):
        kinds = {"jpeg": "u", "name": "SU"}.get(name, "iu")
        shape = (4,) if name == "bbox" else ()  # of an entry
        fits = name not in arrays or (
            arrays[name].ndim == 1 + len(shape)
            and arrays[name].shape[1:] == shape
            and arrays[name].dtype.kind in kinds
        )
        if not fits:
            raise ValueError(
                f"{path} is no packed file of images: its array {name} is {arrays[name].dtype} of "
                f"shape {arrays[name].shape}"
            )
    arrays["offset"] = offset = arrays["offset"].astype(np.int64)
    size = arrays["jpeg"].nbytes
    if not len(offset) or offset[0] or offset[-1] != size or (np.diff(offset) < 0).any():
        raise ValueError(f"{path} is damaged: its offsets do not fit its {size} bytes")
    count = len(offset) - 1
    for name in ("label", "split", "name", "bbox"):
        if name in arrays and len(arrays[name]) != count:
            raise ValueError(
                f"{path} is damaged: it has {count} images, but {len(arrays[name])} entries "
                f"in {name}"
            )
    return arrays


def _rows(path: Path, arrays: _Arrays, split: str | None) -> NDArray[np.int64]:
    """Which images of a file are in the split."""
    if split is None:
        return np.arange(len(arrays["offset"]) - 1)
    if split not in SPLITS or "split" not in arrays:
        raise ValueError(f"{path} has no split {split!r}: choose one of {', '.join(SPLITS)}")
    return np.flatnonzero(arrays["split"] == SPLITS[split])
