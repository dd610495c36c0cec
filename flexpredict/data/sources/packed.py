"""Many small images in one .npz file: encoded images end to end, with offsets, labels and splits.

jpeg    uint8, all files end to end; image i is jpeg[offset[i] : offset[i + 1]]
offset  int64, one more than there are images
label   integers, optional
split   0 for training and 1 for testing, optional
name    file names, optional
"""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.files import stamp_of_files

SPLITS = {"train": 0, "val": 1}


class PackedSource:
    """The images of a packed file, or those of one of its splits."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
        # Taken before reading: a file changed meanwhile is then read again, not taken for known.
        self._stamp = f"{stamp_of_files(path.parent, [path.name])}:{split or ''}"
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files if name != "bbox"}
        except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} cannot be read as an .npz file: {error}") from None
        if not {"jpeg", "offset"} <= set(arrays):
            raise ValueError(
                f"{path} is no packed file of images: expected arrays jpeg and offset, "
                f"found {', '.join(arrays) or 'none'}"
            )
        self.path = path
        self._bytes, self._offset = arrays["jpeg"], arrays["offset"].astype(np.int64)
        offset = self._offset
        if not len(offset) or offset[-1] != len(self._bytes) or (np.diff(offset) < 0).any():
            raise ValueError(
                f"{path} is damaged: its offsets do not fit its {len(self._bytes)} bytes"
            )
        count = len(offset) - 1
        for name in ("label", "split", "name"):
            if name in arrays and len(arrays[name]) != count:
                raise ValueError(
                    f"{path} is damaged: it has {count} images, but {len(arrays[name])} entries "
                    f"in {name}"
                )
        self._rows = np.arange(count)
        if split is not None:
            if split not in SPLITS or "split" not in arrays:
                raise ValueError(
                    f"{path} has no split {split!r}: choose one of {', '.join(SPLITS)}"
                )
            self._rows = np.flatnonzero(arrays["split"] == SPLITS[split])
        if not len(self._rows):
            raise ValueError(f"{path} has no images" + (f" in its split {split}" if split else ""))
        self._names = arrays.get("name")
        self.labels: NDArray[np.int64] | None = None
        self.classes: list[str] = []
        if "label" in arrays:
            # One part of a larger set has some of its labels: they are numbered anew, by value.
            known, labels = np.unique(arrays["label"], return_inverse=True)
            self.labels = labels[self._rows].astype(np.int64)
            self.classes = [str(label) for label in known]

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> bytes:
        row = self._rows[index]
        return self._bytes[self._offset[row] : self._offset[row + 1]].tobytes()

    def name(self, index: int) -> str:
        row = int(self._rows[index])
        if self._names is None:
            return f"{self.path.name}, image {row}"
        name = self._names[row]
        return name.decode() if isinstance(name, bytes) else str(name)

    def stamp(self) -> str | None:
        return self._stamp
