"""Images to draw from: those a person names, else those a run was trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.build import image_size
from flexpredict.data.sources import Progress, Source, open_source
from flexpredict.data.transforms import Transform, read_images, read_pixels
from flexpredict.report.runs import Run

_TRIED = 8  # images, before a set is given up
Spec = str | Path | Source | NDArray[np.uint8]


class Images:
    """Some images, spread evenly over a set, at the size of whichever run is looked at."""

    def __init__(self, spec: Spec, progress: Progress | None = None) -> None:
        self.spec = spec
        self._progress = progress
        self._sources: dict[int, Source] = {}
        self._readable: dict[tuple[int, int], bool] = {}  # row and channels

    @property
    def words(self) -> str:
        """Whose images these are, to be said after "images"."""
        return f" of {self.spec}" if isinstance(self.spec, str | Path) else " of the set"

    def source(self, run: Run) -> Source:
        size = max(image_size(run.settings))  # at which scenes are rendered, which are square
        if size not in self._sources:
            self._sources[size] = open_source(self.spec, image_size=size, progress=self._progress)
        return self._sources[size]

    def rows(self, run: Run, count: int) -> NDArray[np.int64]:
        """At most so many; those that cannot be decoded are left out."""
        source, channels = self.source(run), run.settings.in_channels
        spread = np.linspace(0, len(source) - 1, count).astype(np.int64)
        for row in spread.tolist():
            if (row, channels) not in self._readable:
                self._readable[row, channels] = _is_readable(source, row, channels)
        found = [row for row in np.unique(spread) if self._readable[int(row), channels]]
        if not found:
            raise ValueError(
                f"none of {len(spread)} images{self.words} that were tried can be read with the "
                f"{channels} channels of {run.name}: draw runs of other channels by themselves, or "
                f"name images by --data"
            )
        return np.array(found)

    def read(self, run: Run, rows: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """(n, c, H, W) uint8, on the run's device"""
        settings = run.settings
        size, channels = image_size(settings), settings.in_channels
        return read_images(self.source(run), rows, size, Transform(), channels).to(run.device)

    def pictures(
        self, run: Run, rows: Sequence[int] | NDArray[np.int64]
    ) -> list[NDArray[np.uint8]]:
        """The same as people see them, (H, W, 3) each: the first channel or the first three."""
        pixels = self.read(run, rows).permute(0, 2, 3, 1).cpu().numpy()
        shown = pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
        return list(np.ascontiguousarray(shown))


def _is_readable(source: Source, row: int, channels: int) -> bool:
    try:
        read_pixels(source, row, channels)
    except ValueError:
        return False
    return True


def find_images(
    runs: Sequence[Run], data: Spec | None, progress: Progress | None = None
) -> Images | str:
    """Images for these runs, or a sentence that says why there are none."""
    named = (
        data if data is not None else next((r.settings.data for r in runs if r.settings.data), None)
    )
    if named is None:
        return "the runs do not say which images they were trained on: name some with --data"
    images = Images(named, progress)
    try:
        for run in runs:
            images.rows(run, _TRIED)
    except ValueError as error:
        if data is not None:
            raise
        return f"the images of the runs cannot be used ({error}): name others with --data"
    return images
