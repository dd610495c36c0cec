"""Samples of data sets that open by name, from the folder that FLEXPREDICT_DATA names.

They are read where they lie: packed files, and tar files of which a split is a folder.
"""

import os
from pathlib import Path
from typing import NamedTuple

from flexpredict.data.sources.base import Source
from flexpredict.data.sources.packed import SPLITS, PackedSource
from flexpredict.data.sources.shards import ShardSource

VARIABLE = "FLEXPREDICT_DATA"


class _Named(NamedTuple):
    files: list[str]
    splits: list[str]
    within: str = ""  # the part of a tar file that is meant


NAMES = {
    "tiny-imagenet": _Named([f"tiny-imagenet-200.part{part}.npz" for part in "ABC"], list(SPLITS)),
    "imagenette-sample": _Named(["imagenette-224-sample.npz"], list(SPLITS)),
    "clevr-like": _Named(["clevr-like-125.tar"], ["train", "val", "test"]),
    "davis-sample": _Named(["davis2016-480p-sample.tar"], [], "DAVIS/JPEGImages/"),
}


def open_named(spec: str) -> Source | None:
    """The images of a name, or of `NAME:SPLIT`; None where `spec` names something else."""
    name, colon, split = spec.partition(":")
    if name not in NAMES:
        return None
    folder = os.environ.get(VARIABLE)
    if not folder and Path(spec).is_dir():
        return None  # a folder that happens to be called so
    files, splits, within = NAMES[name]
    if colon and split not in splits:
        expected = f"choose one of {', '.join(splits)}" if splits else f"write {name} alone"
        raise ValueError(f"{name} has no split {split!r}: {expected}")
    remedy = f"set {VARIABLE} to the folder with {', '.join(files)}, or write ./{name} for a folder"
    if not folder:
        raise ValueError(f"{name} is the name of a data set, but {VARIABLE} is not set: {remedy}")
    paths = [Path(folder).expanduser() / file for file in files]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise ValueError(f"{missing}, which {name} is read from, is not there: {remedy}")
    if paths[0].suffix == ".npz":
        return PackedSource(paths, split or None)
    return ShardSource(paths, within or (f"{split}/" if split else ""))
