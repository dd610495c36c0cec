"""The embedded videos in the layout of DAVIS 2017: written once, kept in a cache folder."""

import os
import shutil
from pathlib import Path

from PIL import Image

from flexpredict.data.scene_videos import render_video
from flexpredict.data.sources.base import Progress
from flexpredict.data.sources.davis import write_mask
from flexpredict.data.sources.scenes import code_digest
from flexpredict.files import cache_folder

_MAKERS = ("random", "render", "scenes", "scene_videos", "sources/scene_videos")
_SEED = 0
_START = 2_000_000_000  # the first index, beyond those of the scenes that one trains and tests on


def scene_video_folder(
    count: int = 10, frames: int = 24, size: int = 256, progress: Progress | None = None
) -> Path:
    """A folder that `open_davis` reads, with videos scene-000, scene-001, …

    `progress` is told how many videos are done while they are made.
    """
    for name, value in (("count", count), ("frames", frames), ("size", size)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    folder = cache_folder() / f"scene-videos-{code_digest(*_MAKERS)}-{size}px-{frames}-{count}"
    if folder.is_dir():
        return folder
    temporary = folder.with_name(f".{os.getpid()}-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that died and had this number
    try:
        _write(temporary, count, frames, size, progress)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster: its videos are the same
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _write(root: Path, count: int, frames: int, size: int, progress: Progress | None) -> None:
    names = [f"scene-{number:03d}" for number in range(count)]
    for number, name in enumerate(names):
        pictures, labels = (root / part / "480p" / name for part in ("JPEGImages", "Annotations"))
        pictures.mkdir(parents=True)
        labels.mkdir(parents=True)
        images, masks = render_video(_SEED, _START + number, frames, size)
        for frame, (image, mask) in enumerate(zip(images, masks, strict=True)):
            Image.fromarray(image).save(pictures / f"{frame:05d}.jpg", quality=95)
            write_mask(labels / f"{frame:05d}.png", mask)
        if progress is not None:
            progress(number + 1, count)
    listed = root / "ImageSets" / "2017" / "val.txt"
    listed.parent.mkdir(parents=True)
    listed.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
