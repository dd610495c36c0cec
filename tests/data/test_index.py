"""The index of a folder: all that a walk gives, and never what a walk would no longer give."""

import json
import multiprocessing
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command

from flexpredict.data.sources import FolderSource, index, open_source
from flexpredict.data.sources import folder as walking
from flexpredict.data.sources.folder import index_folder
from flexpredict.data.sources.index import FolderIndex, index_path, open_index, write_index


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders made a moment ago are taken for old ones; the tests set times that differ."""
    monkeypatch.setattr(index, "SETTLED_NS", -(10**18))


def _folder(root: Path) -> Path:
    """Nested folders, odd names, links and files that are no images."""
    for name in (
        "a/1.jpg",
        "a/10.jpg",
        "a/deep/er/still/x.PNG",
        "a-b/2.webp",
        "a-b/.hidden.png",
        "b/notes.txt",
        "b/Ünïcode é 日本 🦉.gif",
        "c/e\u0301.bmp",  # decomposed, as some file systems keep it
        "c/" + os.fsdecode(b"latin-\xe9.tif"),
        "d/line\nbreak.tiff",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name.encode(errors="replace").decode())
    (root / "a" / "loop").symlink_to(root, target_is_directory=True)
    (root / "b" / "again").symlink_to(root / "a" / "deep", target_is_directory=True)
    (root / "d" / "link.jpg").symlink_to(root / "a" / "1.jpg")
    (root / "d" / "broken.jpg").symlink_to(root / "nowhere.jpg")
    return root


def _loose(root: Path) -> Path:
    (_folder(root) / "loose.png").touch()
    return root


def _walked(root: Path, monkeypatch: pytest.MonkeyPatch) -> FolderSource:
    with monkeypatch.context() as patch:
        patch.setattr(walking, "open_index", lambda _: None)
        source = FolderSource(root)
    assert isinstance(source.paths, list)
    return source


def _facts(source: FolderSource) -> dict[str, Any]:
    return {
        "names": [source.name(place) for place in range(len(source))],
        "from the end": [source.name(-1), source.paths[1:3]],
        "iterated": list(source.paths),
        "labels": None if source.labels is None else source.labels.tolist(),
        "classes": source.classes,
        "stamp": source.stamp(),
        "first": source.read(0),
    }


@pytest.mark.parametrize("make", [_folder, _loose], ids=["labelled", "unlabelled"])
def test_index__equals_a_walk(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "photos")
    walked = _walked(root, monkeypatch)
    assert (walked.labels is None) == (make is _loose)
    monkeypatch.setattr(walking, "INDEX_FROM", 10)
    for opened in ("written", "from the cache", "under another name"):
        if opened == "from the cache":
            monkeypatch.setattr(walking, "walk_images", None)  # nothing is walked any more
        if opened == "under another name":
            (tmp_path / "other").symlink_to(root)
            root = tmp_path / "other"
        source = open_source(root)
        assert isinstance(source, FolderSource)
        assert isinstance(source.paths, FolderIndex), opened
        assert _facts(source) == _facts(walked), opened
        assert type(source.labels) is type(walked.labels)
    with pytest.raises(IndexError):
        source.name(len(source))


def test_index__small_folders_are_walked_unless_asked(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    assert isinstance(FolderSource(root).paths, list)
    assert not index_path(root).exists()
    told: list[tuple[int, int]] = []
    index_folder(root, lambda done, total: told.append((done, total)))
    assert isinstance(FolderSource(root).paths, FolderIndex)
    assert told[-1] == (len(FolderSource(root)), len(FolderSource(root)))


def test_index__errors_are_those_of_a_walk(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    index_folder(_folder(root))
    shutil.rmtree(root)
    with pytest.raises(ValueError, match="photos: no such folder"):
        FolderSource(root)
    root.mkdir()
    with pytest.raises(ValueError, match="holds no images"):
        FolderSource(root)
    with pytest.raises(ValueError, match="holds no images"):
        index_folder(root)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match="loop: no such folder"):
        FolderSource(tmp_path / "loop")


def _outside(root: Path) -> Path:
    return root.parent / "outside"


_CHANGES: dict[str, Callable[[Path], Any]] = {
    "added": lambda root: (root / "a" / "new.jpg").touch(),
    "added at the top": lambda root: (root / "new.jpg").touch(),
    "added deep": lambda root: (root / "a/deep/er/still/new.jpg").touch(),
    "added behind a link": lambda root: (_outside(root) / "new.jpg").touch(),
    "added in a folder that had no images": lambda root: (root / "empty/in/new.jpg").touch(),
    "removed": lambda root: (root / "a-b/2.webp").unlink(),
    "removed deep": lambda root: (root / "a/deep/er/still/x.PNG").unlink(),
    "renamed": lambda root: (root / "a/1.jpg").rename(root / "a/3.jpg"),
    "class renamed": lambda root: (root / "a-b").rename(root / "z"),
    "class removed": lambda root: shutil.rmtree(root / "a-b"),
    "moved": lambda root: (root / "a/1.jpg").rename(root / "c/1.jpg"),
    "folder behind a dangling link": lambda root: shutil.copytree(
        root / "c", root.parent / "unmounted"
    ),
}


@pytest.mark.parametrize("keeps_mtime", [False, True], ids=["", "mtime set back"])
@pytest.mark.parametrize("change", _CHANGES)
def test_index__is_stale_after_a_change(
    change: str, keeps_mtime: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _folder(tmp_path / "photos")
    (root / "empty" / "in").mkdir(parents=True)
    _outside(root).mkdir()
    (root / "linked").symlink_to(_outside(root))
    (root / "dangling").symlink_to(root.parent / "unmounted")
    folders = [root, _outside(root), *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        os.utime(folder, ns=(0, 1_000_000_000))
    before = list(index_folder(root))
    assert open_index(root) is not None
    time.sleep(0.02)  # a clock of the kernel ticks every 4 to 10 ms
    _CHANGES[change](root)
    if keeps_mtime:  # as programs do that copy folders
        for folder in folders:
            if folder.is_dir():
                os.utime(folder, ns=(0, 1_000_000_000))
    assert open_index(root) is None
    source = FolderSource(root)
    assert list(source.paths) == list(_walked(root, monkeypatch).paths) != before
    index_folder(root)
    assert list(FolderSource(root).paths) == list(source.paths)


def test_index__a_retargeted_link_makes_it_stale(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jpg").touch()
    (tmp_path / "middle").symlink_to(tmp_path / "one")
    root = tmp_path / "photos"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "middle")  # nothing below the root will change
    assert list(index_folder(root)) == ["linked/one.jpg"]
    assert open_index(root) is not None
    (tmp_path / "middle").unlink()
    (tmp_path / "middle").symlink_to(tmp_path / "two")
    assert list(FolderSource(root).paths) == ["linked/two.jpg"]


def test_index__a_folder_changed_just_before_the_walk_is_walked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLED_NS", 10**18)  # some 30 years
    index_folder(_folder(tmp_path))
    assert open_index(tmp_path) is None
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 2 * 10**18)
    index_folder(tmp_path)
    assert open_index(tmp_path) is not None


def _sections(path: Path) -> dict[str, tuple[int, int, str]]:
    return FolderIndex(path)._sections


@pytest.mark.parametrize("name", ["magic", "header", *index._SECTIONS])
def test_index__a_damaged_one_is_built_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "INDEX_FROM", 1)
    root = _folder(tmp_path)
    expected, path = _facts(FolderSource(root)), index_path(root)
    places = {"magic": 3, "header": 100}
    start, size, _ = _sections(path).get(name, (places.get(name, 0), 1, ""))
    assert size
    for place in (start, start + size - 1):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is no index of this version|is damaged"):
            FolderIndex(path)
        assert open_index(root) is None
        assert _facts(FolderSource(root)) == expected
        assert open_index(root) is not None


@pytest.mark.parametrize("size", [0, 10, 4000, 4096, 4200, -1, "more"])
def test_index__a_truncated_one_is_built_again(
    size: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "INDEX_FROM", 1)
    root = _folder(tmp_path)
    expected, path = _facts(FolderSource(root)), index_path(root)
    content = path.read_bytes()
    path.write_bytes(content + b"more" if isinstance(size, str) else content[:size])
    assert open_index(root) is None
    assert _facts(FolderSource(root)) == expected
    assert path.read_bytes()[4096:] == content[4096:]


def test_index__of_another_format_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index, "_FORMAT", 3)
        index_folder(_folder(tmp_path))
    with pytest.raises(ValueError, match="has format 3, expected 2"):
        FolderIndex(index_path(tmp_path))
    assert open_index(tmp_path) is None


def test_index__a_large_one_is_checked_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "CHECKED_BYTES", 0)
    index_folder(_folder(tmp_path)).verify()
    path = index_path(tmp_path)
    sections, content = _sections(path), bytearray(path.read_bytes())
    content[sections["paths"][0]] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: the checksum of its paths is wrong"):
        FolderIndex(path).verify()
    content[sections["states"][0]] ^= 1  # small ones are always checked
    path.write_bytes(content)
    assert open_index(tmp_path) is None


def test_index__without_a_cache_a_folder_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _folder(tmp_path / "photos")
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLEXPREDICT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(walking, "INDEX_FROM", 1)
    assert isinstance(FolderSource(root).paths, list)
    with pytest.raises(ValueError, match=r"cannot be written to .*file.*: set FLEXPREDICT_CACHE"):
        index_folder(root)


def test_index__a_failed_write_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "i"
    write_index(path, ["a/x", "b/y"], np.array([0, 1]), ["a", "b"])

    def broken() -> Any:
        yield "a/z"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_index(path, broken(), None, [])
    assert list(FolderIndex(path)) == ["a/x", "b/y"]
    assert os.listdir(tmp_path) == ["i"]


def _open_often(root: Path) -> set[tuple[str, ...]]:
    found = set()
    for turn in range(20):
        found.add(tuple(index_folder(root) if turn % 2 else FolderSource(root).paths))
    return found


def test_index__processes_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    before = FolderSource(root)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = set().union(*pool.map(_open_often, [root] * 3, chunksize=1))
    assert found == {tuple(before.paths)}
    assert not list(index_path(root).parent.glob(".*"))


def test_index__is_pickled_as_its_path(tmp_path: Path) -> None:
    count = 50_000
    made_up = [f"{place % 9}/{place}.jpg" for place in range(count)]
    found = write_index(tmp_path / "i", made_up, np.arange(count) % 9, list("012345678"))
    source = FolderSource.__new__(FolderSource)
    source.__setstate__({"root": tmp_path, "paths": found})
    content = pickle.dumps(source)
    assert len(content) < 1000
    again = pickle.loads(content)
    assert (len(again), list(again.paths), again.classes) == (count, made_up, source.classes)
    np.testing.assert_array_equal(again.labels, source.labels)
    walked = pickle.loads(pickle.dumps(FolderSource(_folder(tmp_path / "photos"))))
    assert walked.labels is not None
    # With other images under its numbers, a worker must not go on; with the same ones it may.
    write_index(tmp_path / "i", made_up, np.arange(count) % 9, list("012345678"), walked_ns=9)
    pickle.loads(content)
    write_index(tmp_path / "i", made_up[1:], None, [])
    with pytest.raises(ValueError, match="was written anew with other images"):
        pickle.loads(content)
    assert source.name(0) == "0/0.jpg"  # what is mapped stays


def test_index__labels_can_be_tensors_and_do_not_write_to_the_file(tmp_path: Path) -> None:
    found = write_index(tmp_path / "i", ["a/x", "b/y"], np.array([0, 1]), ["a", "b"])
    assert found.labels is not None
    torch.from_numpy(found.labels)[0] = 7  # would warn of an array that is read-only
    again = FolderIndex(tmp_path / "i").labels
    assert again is not None
    assert again.tolist() == [0, 1]


def test_index__from_the_shell(photos: Path, tmp_path: Path, command: Command) -> None:
    code, out, err = command("data", "index", photos, "--json")
    assert code == 0, err
    assert json.loads(out) == {"folder": str(photos), "images": 96, "classes": 2}
    code, out, err = command("data", "index", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
