"""The embedded scenes as a source: rendered once, kept in a cache folder, mapped into memory."""

import functools
import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.cores import processes_to_start
from flexpredict.data.scenes import DIST_EDGES, FEWEST, MOST, TASKS, render_set
from flexpredict.data.sources.base import Progress
from flexpredict.data.sources.memory import MemorySource
from flexpredict.files import cache_folder, whole

# The first index of each set and how many scenes it has by default; the ranges do not overlap.
SCENE_SETS = {"scenes": (0, 10_000), "scenes-test": (1_000_000_000, 4_000)}

# A layout is a task; the set and the number of scenes that its splits have by default.
SCENE_LAYOUTS = {f"scenes-{task}": task for task in TASKS}
_MAKERS = ("random", "render", "scenes")
_SPLITS = {"train": ("scenes", 8_000), "test": ("scenes-test", 4_000)}
_CLASSES = {
    "count": [str(count) for count in range(FEWEST, MOST + 1)],
    "dist": [
        f"below {DIST_EDGES[0]:g}",
        *(f"{near:g} to {far:g}" for near, far in pairwise(DIST_EDGES)),
        f"from {DIST_EDGES[-1]:g}",
    ],
    "class": [
        f"{m} {shape}" for shape in ("sphere", "cube", "cylinder") for m in ("rubber", "metal")
    ],
}


def scene_images(
    name: str, *, count: int | None, size: int, progress: Progress | None = None
) -> MemorySource:
    """The images of a set, without labels."""
    return MemorySource(
        scenes(name, count=count, size=size, progress=progress)[0],
        stamp=_folder(name, count, size).name,
    )


def scene_task(
    layout: str, split: str, *, count: int | None, size: int, progress: Progress | None = None
) -> MemorySource:
    """The images of a split with the labels of a task."""
    task = SCENE_LAYOUTS[layout]
    name, default = _SPLITS[split]
    images, labels = scenes(name, count=count or default, size=size, progress=progress)
    stamp = _folder(name, count or default, size).name
    return MemorySource(images, labels[task], _CLASSES[task], stamp=stamp)


def scene_count(spec: str) -> int | None:
    """The number after the colon in `scenes:COUNT`, where there is one."""
    count = spec.partition(":")[2]
    if count and not (count.isdecimal() and count.isascii() and int(count)):
        raise ValueError(f"{spec}: expected a number of scenes after the colon")
    return int(count) if count else None


def scenes(
    name: str,
    *,
    count: int | None = None,
    size: int = 64,
    progress: Progress | None = None,
) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    """The images of a set, (count, size, size, 3), and the labels of every task."""
    start, default = SCENE_SETS[name]
    count = count or default
    folder = _folder(name, count, size)
    if not (folder / "labels.npz").exists():
        told = None if progress is None else functools.partial(_tell, progress, count)
        images, labels = render_set(
            0, count, size, start=start, workers=processes_to_start(), progress=told
        )
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "images.npy", lambda file: np.save(file, images))
        # The labels come last: their presence says that the set is whole.
        _write(folder / "labels.npz", lambda file: np.savez(file, allow_pickle=False, **labels))
    with np.load(folder / "labels.npz") as file:
        labels = {task: file[task] for task in TASKS}
    return np.load(folder / "images.npy", mmap_mode="r"), labels


def _folder(name: str, count: int | None, size: int) -> Path:
    """Where a set is kept; its name says all that the images depend on."""
    start, default = SCENE_SETS[name]
    return cache_folder() / f"scenes-{code_digest(*_MAKERS)}-{size}px-{start}-{count or default}"


def _tell(progress: Progress, total: int, done: int) -> None:
    progress(done, total)


@functools.cache
def code_digest(*names: str) -> str:
    """Of files of this room, in which something is made: other code, other cache."""
    room = Path(__file__).parent.parent
    code = b"".join((room / f"{name}.py").read_bytes() for name in names)
    return hashlib.sha256(code).hexdigest()[:12]


def _write(path: Path, save: Callable[[Path], None]) -> None:
    try:
        with whole(path) as file:
            save(file)
    except OSError as error:
        raise OSError(
            f"{cache_folder()} does not take the scenes: {error}; make room there, or name "
            f"another folder in FLEXPREDICT_CACHE"
        ) from error
