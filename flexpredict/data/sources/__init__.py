"""Where images come from. `open_source(spec)` stands behind every command."""

from pathlib import Path
from typing import Any

import numpy as np

from flexpredict.data.sources.base import Progress, Source
from flexpredict.data.sources.files import FileSource
from flexpredict.data.sources.folder import FolderSource
from flexpredict.data.sources.layouts import LAYOUTS, open_layout
from flexpredict.data.sources.memory import MemorySource
from flexpredict.data.sources.packed import PackedSource
from flexpredict.data.sources.scenes import SCENE_SETS, scene_count, scene_images

__all__ = [
    "LAYOUTS",
    "FileSource",
    "FolderSource",
    "MemorySource",
    "PackedSource",
    "Progress",
    "Source",
    "open_source",
]


def open_source(
    spec: str | Path | Source | np.ndarray[Any, Any] | None,
    *,
    layout: str | None = None,
    split: str | None = None,
    image_size: int = 64,
    progress: Progress | None = None,
) -> Source:
    """A source from what a person names: a folder, `scenes`, an array, or a source itself.

    `scenes` (or `scenes:COUNT`) are the embedded training scenes and `scenes-test` the test ones,
    rendered at `image_size`. `FILE.npz` is a packed file, `FILE.npz:train` one of its splits.
    With a `layout`, `spec` is the root of a published data set and `split` is train or test; the
    layouts of the embedded scenes (`scenes-count`, …) need no root.
    """
    if layout is not None:
        return open_layout(spec, layout, split, image_size=image_size, progress=progress)
    if split is not None:
        raise ValueError(
            f"split {split!r} was given without a layout: name the layout too, "
            f"or the folder of the split, or FILE.npz:{split}"
        )
    if spec is None:
        raise ValueError("no data was given: name a folder of images, a packed .npz file or scenes")
    if isinstance(spec, np.ndarray):
        return MemorySource(spec)
    if isinstance(spec, str | Path):
        if (name := str(spec).partition(":")[0]) in SCENE_SETS:
            return scene_images(
                name, count=scene_count(str(spec)), size=image_size, progress=progress
            )
        path, _, part = str(spec).partition(".npz:")
        if part or str(spec).endswith(".npz"):
            file = Path(f"{path.removesuffix('.npz')}.npz").expanduser()
            return PackedSource(file, part or None)
        return FolderSource(Path(spec).expanduser())
    return spec
