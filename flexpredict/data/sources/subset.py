"""Some images of a source, as a source."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.base import Pixels, Source


class SubsetSource:
    def __init__(self, source: Source, rows: NDArray[np.int64]) -> None:
        self.source, self.rows = source, rows
        self.labels = None if source.labels is None else source.labels[rows]
        self.classes = source.classes

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> bytes | Pixels:
        return self.source.read(int(self.rows[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.rows[index]))

    def stamp(self) -> str | None:
        whole = self.source.stamp()
        if whole is None:
            return None
        return hashlib.sha256(whole.encode() + self.rows.tobytes()).hexdigest()
