"""Where images come from. `open_source(spec)` stands behind every command."""

from pathlib import Path
from typing import Any

import numpy as np

from flexpredict.data.sources.base import Progress, Source
from flexpredict.data.sources.folder import FolderSource
from flexpredict.data.sources.memory import MemorySource
from flexpredict.data.sources.packed import PackedSource
from flexpredict.data.sources.scenes import SCENE_SETS, scenes

__all__ = ["FolderSource", "MemorySource", "PackedSource", "Progress", "Source", "open_source"]


def open_source(
    spec: str | Path | Source | np.ndarray[Any, Any],
    *,
    image_size: int = 64,
    progress: Progress | None = None,
) -> Source:
    """A source from what a person names: a folder, `scenes`, an array, or a source itself.

    `scenes` (or `scenes:COUNT`) are the embedded training scenes and `scenes-test` the test ones,
    rendered at `image_size`. `FILE.npz` is a packed file, `FILE.npz:train` one of its splits.
    """
    if isinstance(spec, np.ndarray):
        return MemorySource(spec)
    if isinstance(spec, str | Path):
        name, _, count = str(spec).partition(":")
        if name in SCENE_SETS:
            if count and not (count.isdigit() and int(count)):
                raise ValueError(f"{spec}: expected a number of scenes after the colon")
            number = int(count) if count else None
            return MemorySource(scenes(name, count=number, size=image_size, progress=progress)[0])
        path, _, split = str(spec).partition(".npz:")
        if split or str(spec).endswith(".npz"):
            file = Path(f"{path.removesuffix('.npz')}.npz").expanduser()
            return PackedSource(file, split or None)
        return FolderSource(Path(spec).expanduser())
    return spec
