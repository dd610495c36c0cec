"""Decoded images of one size that are already in memory, or mapped into it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.base import Pixels


class MemorySource:
    """An array of uint8 images, (count, height, width, channels).

    `stamp` is for images that were made or read from something that has one.
    """

    def __init__(
        self,
        images: NDArray[Any],
        labels: NDArray[np.int64] | None = None,
        classes: list[str] | None = None,
        *,
        stamp: str | None = None,
    ) -> None:
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(
                f"images in memory are uint8 of shape (count, height, width, channels), "
                f"not {images.dtype} of shape {images.shape}"
            )
        if not images.size:
            raise ValueError(f"there are no pixels in an array of shape {images.shape}")
        self.images = images
        self.labels = labels
        self.classes = classes or []
        self._stamp = stamp

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Pixels:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"image {index}"

    def stamp(self) -> str | None:
        return self._stamp
