"""Where images come from. `open_source(spec)` stands behind every command."""

from pathlib import Path
from typing import Any

import numpy as np

from flexpredict.data.sources.base import Progress, Source
from flexpredict.data.sources.files import FileSource
from flexpredict.data.sources.folder import FolderSource
from flexpredict.data.sources.layouts import LAYOUTS, open_layout
from flexpredict.data.sources.listing import SUFFIXES as LIST_SUFFIXES
from flexpredict.data.sources.listing import ListSource
from flexpredict.data.sources.memory import MemorySource
from flexpredict.data.sources.named import open_named
from flexpredict.data.sources.packed import PackedSource
from flexpredict.data.sources.scenes import SCENE_SETS, scene_count, scene_images
from flexpredict.data.sources.shards import ShardSource, expand, shard_paths

__all__ = [
    "LAYOUTS",
    "FileSource",
    "FolderSource",
    "ListSource",
    "MemorySource",
    "PackedSource",
    "Progress",
    "ShardSource",
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
    """A source from what a person names, or a source itself.

    A folder of images of any depth; `LIST.txt` or `LIST.csv`, paths of images and perhaps their
    labels; tar shards as `train.tar`, `train-{000..012}.tar`, `shards/*.tar` or a folder of them;
    an array.
    `scenes` (or `scenes:COUNT`) are the embedded training scenes and `scenes-test` the test ones,
    rendered at `image_size`. `FILE.npz` is a packed file, `FILE.npz:train` one of its splits;
    `part{A,B}.npz` and `part*.npz` are several files as one.
    `tiny-imagenet`, `imagenette-sample`, `clevr-like` (each also with `:train`, `:val`) and
    `davis-sample` lie in the folder that FLEXPREDICT_DATA names; a folder that is called so is
    written `./tiny-imagenet`, or given as a `Path`.
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
    if isinstance(spec, np.ndarray):
        return MemorySource(spec)
    if spec is None or spec == "":
        raise ValueError("no data was given: name a folder of images, a packed .npz file or scenes")
    if isinstance(spec, str | Path):
        if (name := str(spec).partition(":")[0]) in SCENE_SETS:
            return scene_images(
                name, count=scene_count(str(spec)), size=image_size, progress=progress
            )
        if isinstance(spec, str) and (named := open_named(spec)) is not None:
            return named
        path, _, part = str(spec).partition(".npz:")
        if part or str(spec).endswith(".npz"):
            file = Path(f"{path.removesuffix('.npz')}.npz").expanduser()
            return PackedSource(expand(file, "packed files"), part or None)
        folder = Path(spec).expanduser()
        if folder.suffix.lower() in LIST_SUFFIXES and not folder.is_dir():
            return ListSource(folder)
        if (shards := shard_paths(str(spec))) is not None:
            return ShardSource(shards)
        return FolderSource(folder)
    if not (hasattr(spec, "read") and callable(getattr(spec, "name", None))):
        raise ValueError(
            f"data is of type {type(spec).__name__}: expected a path, a name, an array of NumPy "
            f"(.numpy() makes one of a tensor) or a source"
        )
    return spec
