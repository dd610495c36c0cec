"""Published data sets by the layout they are published in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flexpredict.data.sources.base import Progress, Source
from flexpredict.data.sources.cifar import cifar10, cifar100
from flexpredict.data.sources.clevr import clevr_count, clevr_dist
from flexpredict.data.sources.imagenet import imagenet, tiny_imagenet
from flexpredict.data.sources.listed_sets import inat18, places205
from flexpredict.data.sources.scenes import SCENE_LAYOUTS, scene_count, scene_task

# "test" is the published validation part where that is what everybody tests on.
SPLITS = ("train", "test")

LAYOUTS: dict[str, Callable[[Path, str], Source]] = {
    "imagenet": imagenet,
    "tiny-imagenet": tiny_imagenet,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "places205": places205,
    "inat18": inat18,
    "clevr-count": clevr_count,
    "clevr-dist": clevr_dist,
}


def open_layout(
    spec: Any, layout: str, split: str | None, *, image_size: int, progress: Progress | None
) -> Source:
    """A split of the set at `spec`; the embedded scenes need none."""
    if layout not in LAYOUTS and layout not in SCENE_LAYOUTS:
        known = ", ".join((*LAYOUTS, *SCENE_LAYOUTS))
        raise ValueError(f"there is no layout {layout!r}: choose one of {known}")
    if split not in SPLITS:
        found = "no split" if split is None else f"the split {split!r}"
        raise ValueError(f"layout {layout} got {found}: choose one of {', '.join(SPLITS)}")
    if layout in SCENE_LAYOUTS:
        if spec is not None and str(spec).partition(":")[0] != "scenes":
            raise ValueError(
                f"layout {layout} is rendered, not read from {spec}: give no data, or scenes:COUNT"
            )
        count = None if spec is None else scene_count(str(spec))
        return scene_task(layout, split, count=count, size=image_size, progress=progress)
    if not isinstance(spec, str | Path):
        found = "nothing" if spec is None else f"a {type(spec).__name__}"
        raise ValueError(f"layout {layout} is read from a folder, not from {found}: name its root")
    root = Path(spec).expanduser()
    if not root.exists():
        raise ValueError(f"{root}: no such file or folder, expected the root of {layout}")
    return LAYOUTS[layout](root, split)
