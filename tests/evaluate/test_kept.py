"""What is kept of features: whole, as much as is allowed, and never at the cost of a result."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from flexpredict.evaluate import kept
from flexpredict.notice import Notice


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEXPREDICT_CACHE", str(tmp_path))
    monkeypatch.delenv("FLEXPREDICT_CACHE_GIB", raising=False)
    return tmp_path / "features"


FEATURES = np.arange(256 * 256, dtype=np.float32).reshape(256, 256)  # a quarter of a MiB
SHAPE = FEATURES.shape


def _aged(path: Path, hours: float) -> None:
    then = path.stat().st_mtime - 3600 * hours
    os.utime(path, (then, then))


def test_read__gives_what_was_written_or_nothing(folder: Path) -> None:
    assert kept.read("a", SHAPE, 256) is None
    kept.write("a", FEATURES)
    found, last = kept.read("a", SHAPE, 256), kept.read("a", SHAPE, 3)
    assert found is not None
    assert last is not None
    assert torch.equal(found, torch.from_numpy(FEATURES))
    assert torch.equal(last, torch.from_numpy(FEATURES[:, -3:]))
    assert kept.read("a", (256, 2), 2) is None
    (folder / "a.npy").write_bytes((folder / "a.npy").read_bytes()[:1000])
    assert kept.read("a", SHAPE, 256) is None


def test_write__lets_go_of_what_was_not_used_for_longest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours, name in ((3, "a"), (2, "b"), (1, "c")):
        kept.write(name, FEATURES)
        _aged(folder / f"{name}.npy", hours)
    assert kept.read("a", SHAPE, 256) is not None  # used again
    monkeypatch.setenv("FLEXPREDICT_CACHE_GIB", str(0.8 / 1024))  # three of them
    kept.write("d", FEATURES)
    assert {path.name for path in folder.iterdir()} == {"a.npy", "c.npy", "d.npy"}
    monkeypatch.setenv("FLEXPREDICT_CACHE_GIB", "1e-9")
    kept.write("e", FEATURES)
    assert {path.name for path in folder.iterdir()} == {"e.npy"}  # the newest, however large
    monkeypatch.setenv("FLEXPREDICT_CACHE_GIB", "0")
    kept.write("f", FEATURES)
    assert {path.name for path in folder.iterdir()} == {"e.npy"}


def test_read__a_cache_that_can_only_be_read_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write("a", FEATURES)

    def refused(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "utime", refused)
    assert kept.read("a", SHAPE, 256) is not None
    (folder / "notes").mkdir()  # what is no file of ours is left alone
    monkeypatch.setenv("FLEXPREDICT_CACHE_GIB", "1e-9")
    kept.write("b", FEATURES)
    assert {path.name for path in folder.iterdir()} == {"b.npy", "notes"}


def test_write__clears_what_a_killed_process_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    for name in (".1-old.npy", ".2-new.npy"):
        (folder / name).write_bytes(b"half")
    _aged(folder / ".1-old.npy", 30)
    monkeypatch.setenv("FLEXPREDICT_CACHE_GIB", "1e-9")
    kept.write("a", FEATURES)
    assert {path.name for path in folder.iterdir()} == {".2-new.npy", "a.npy"}


def test_write__a_disk_that_takes_no_more_is_said_and_nothing_else(folder: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(Notice, match="takes no more features"):
            kept.write("a", FEATURES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("text", ["much", "-1", "nan"])
def test_limit__has_to_be_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXPREDICT_CACHE_GIB", text)
    with pytest.raises(ValueError, match=f"FLEXPREDICT_CACHE_GIB is '{text}'"):
        kept.read("a", SHAPE, 256)
