"""Features on disk, by name: no more of them than FLEXPREDICT_CACHE_GIB allows."""

import os
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.files import cache_folder, whole
from flexpredict.notice import Notice

VARIABLE = "FLEXPREDICT_CACHE_GIB"
_USUAL = 20.0
_DAY = 86_400.0


def read(name: str, shape: tuple[int, int], last: int) -> Tensor | None:
    """The last so many columns of what is kept under a name, if it is whole and of this shape."""
    _limit()  # said before anything is computed, if it is wrong
    path = _folder() / f"{name}.npy"
    try:
        features = np.load(path, mmap_mode="r")
        found = np.array(features[:, -last:]) if features.shape == shape else None
    except (OSError, ValueError, EOFError):
        return None
    with suppress(OSError):  # a cache that can only be read is as good
        os.utime(path)  # what was used last goes last
    return None if found is None else torch.from_numpy(found)


def write(name: str, features: NDArray[np.float32]) -> None:
    """Keeps features, and lets go of those that were not used for longest.

    The newest stay, however large they are, unless the limit is 0.
    """
    if not _limit():
        return
    path = _folder() / f"{name}.npy"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as file:
            np.save(file, features)
    except OSError as error:  # as on a full disk: the features are there all the same
        warnings.warn(
            f"{path.parent} takes no more features, so that they will be computed again: {error}",
            Notice,
            stacklevel=2,
        )
    else:
        with suppress(OSError):
            _trim(path)


def _trim(newest: Path) -> None:
    """Others may do the same at the same time."""
    files = []
    for path in newest.parent.iterdir():
        with suppress(OSError):
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in files)
    for used, size, path in sorted(files):
        unfinished = path.name.startswith(".")
        left_over = unfinished and used < time.time() - _DAY
        if left_over or (total > _limit() and not unfinished and path != newest):
            with suppress(OSError):  # it is gone already, or somebody else's
                path.unlink()
                total -= size


def _folder() -> Path:
    return cache_folder() / "features"


def _limit() -> float:
    """Bytes."""
    text = os.environ.get(VARIABLE) or str(_USUAL)
    try:
        gib = float(text)
    except ValueError:
        gib = -1.0
    if not gib >= 0:
        raise ValueError(f"{VARIABLE} is {text!r}: a number of GiB is expected, such as 20")
    return gib * 2**30
