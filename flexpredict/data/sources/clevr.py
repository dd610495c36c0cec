"""CLEVR: how many objects a scene has, and how far away the nearest is."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flexpredict.data.sources.files import FileSource
from flexpredict.data.sources.reading import folder_with, read_json

FEWEST, MOST = 3, 10
DIST_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
_KEPT = ("scenes", "image_filename", "objects", "pixel_coords")

_Labeller = Callable[[list[dict[str, Any]]], int]


def clevr_count(root: Path, split: str) -> FileSource:
    """CLEVR/Count: 3 … 10 objects, eight classes."""
    return _clevr(root, split, count_label, [str(n) for n in range(FEWEST, MOST + 1)])


def clevr_dist(root: Path, split: str) -> FileSource:
    """CLEVR/Dist: camera depth of the nearest object, in six bins."""
    names = [f"({a:g}, {b:g}]" for a, b in pairwise(DIST_EDGES)]
    return _clevr(root, split, dist_label, names)


def count_label(objects: list[dict[str, Any]]) -> int:
    if not FEWEST <= len(objects) <= MOST:
        raise ValueError(f"{len(objects)} objects, expected {FEWEST} to {MOST}")
    return len(objects) - FEWEST


def dist_label(objects: list[dict[str, Any]]) -> int:
    """The bin, open on the left and closed on the right, of the least depth."""
    nearest = min(float(item["pixel_coords"][2]) for item in objects)
    if not DIST_EDGES[0] < nearest <= DIST_EDGES[-1]:
        raise ValueError(f"a depth of {nearest:g}, expected more than 0 and at most 100")
    return int(np.searchsorted(DIST_EDGES[1:], nearest, side="left"))


def _clevr(root: Path, split: str, label: _Labeller, classes: list[str]) -> FileSource:
    # The labels of the published test part are not public: everybody tests on val.
    part = {"train": "train", "test": "val"}[split]
    images, described = _scenes(root, part)
    present = {path.name for path in images.iterdir()} if images.is_dir() else set()
    paths, labels = [], []
    for origin, scene in described:
        try:
            file, objects = str(scene["image_filename"]), scene["objects"]
            labels.append(label(objects))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{origin}: a scene has {reason}, so it cannot be labelled") from None
        if file not in present:
            raise ValueError(
                f"{images / file} is described in {origin} but not there: unpack the images"
            )
        paths.append(file)
    if not paths:
        raise ValueError(f"{root} describes no scenes for {part}: expected at least one")
    return FileSource(images, paths, labels, classes)


def _scenes(root: Path, part: str) -> tuple[Path, list[tuple[Path, dict[str, Any]]]]:
    """The folder of images, and every scene with the file that describes it."""
    if (root / part / "scenes").is_dir():  # as the generator leaves them: one file per scene
        files = sorted((root / part / "scenes").glob("*.json"))
        return root / part / "images", [(file, read_json(file, _lean)) for file in files]
    root = folder_with(root, "scenes", "CLEVR_v1.0")
    file = root / "scenes" / f"CLEVR_{part}_scenes.json"
    scenes = read_json(file, _lean).get("scenes")
    if not isinstance(scenes, list):
        raise ValueError(f"{file} has no list of scenes: expected the file as it was published")
    return root / "images" / part, [(file, scene) for scene in scenes]


def _lean(node: dict[str, Any]) -> dict[str, Any]:
    """What labels need; the relations of 70,000 scenes would fill gigabytes."""
    return {key: node[key] for key in _KEPT if key in node}
