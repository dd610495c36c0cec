"""What every source offers: a number of images, each readable by its index."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (height, width, channels)
Progress = Callable[[int, int], None]  # told how many are done, and of how many


class Source(Protocol):
    """Images by index, labelled or not. Sources are pickled into worker processes.

    Held sets (`hold=ram`, `hold=device`) are read by several threads at once.
    """

    labels: NDArray[np.int64] | None
    classes: list[str]

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | Pixels:
        """An image: encoded bytes still to be decoded, or pixels."""
        ...

    def name(self, index: int) -> str:
        """What a person would call the image."""
        ...

    def stamp(self) -> str | None:
        """A string that changes when the images may have changed; None where nobody can tell."""
        ...
