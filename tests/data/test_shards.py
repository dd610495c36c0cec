"""Tar shards: written here, read by place, pickled; and tar files that must be refused."""

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flexpredict.data.decode import decode
from flexpredict.data.loader import Batches, Order, load
from flexpredict.data.sources import FolderSource, ShardSource, open_source
from flexpredict.data.sources import shards as module


def _png(red: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (red, 0, 0)).save(data, format="PNG")
    return data.getvalue()


def _tar(path: Path, files: Mapping[str, bytes] | list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items() if isinstance(files, Mapping) else files:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def _shards(folder: Path, count: int = 3) -> Path:
    """Two samples a shard; number n is 20 n red and has the label 10 − n."""
    for shard in range(count):
        files = {}
        for number in (2 * shard, 2 * shard + 1):
            files[f"{number:04d}.png"] = _png(20 * number)
            files[f"{number:04d}.cls"] = f"{10 - number}\n".encode()
        _tar(folder / f"train-{shard:03d}.tar", files)
    return folder


def _reds(source: object) -> list[int]:
    assert isinstance(source, ShardSource)
    return [int(decode(source.read(i))[0, 0, 0]) for i in range(len(source))]


def _refused(spec: Path | str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        open_source(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards__by_every_way_to_name_them(tmp_path: Path) -> None:
    folder = _shards(tmp_path / "shards")
    (folder / "info.json").write_text("{}")  # such files stand beside published shards
    for spec in ("", "/*.tar", "/train-{000..002}.tar", "/train-{000,001,002}.tar"):
        assert _reds(open_source(f"{folder}{spec}")) == [0, 20, 40, 60, 80, 100]
    assert _reds(open_source(folder / "train-{001..002}.tar")) == [40, 60, 80, 100]
    assert _reds(open_source(folder / "train-001.tar")) == [40, 60]
    assert _reds(open_source(f"{folder}/train-0{{0..0}}{{1..2}}.tar")) == [40, 60, 80, 100]


def test_shards__labels_and_names(tmp_path: Path) -> None:
    source = open_source(_shards(tmp_path))
    assert source.classes == ["5", "6", "7", "8", "9", "10"]
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [5, 4, 3, 2, 1, 0]
    assert [source.name(0), source.name(3)] == ["train-000.tar/0000.png", "train-001.tar/0003.png"]


def test_shards__names_tell_folders_apart(tmp_path: Path) -> None:
    for part in ("a", "b"):
        _shards(tmp_path / part, 1)
    source = open_source(f"{tmp_path}/*/train-000.tar")
    assert [source.name(i) for i in (0, 3)] == [
        "a/train-000.tar/0000.png",
        "b/train-000.tar/0001.png",
    ]


def test_samples__share_a_name_up_to_the_first_dot(tmp_path: Path) -> None:
    files = [
        ("./b/x.json", b'{"label": "owl", "caption": "an owl"}'),
        ("./b/y.JPG", _png(60)),
        ("./b/x.mask.png", _png(255)),
        ("./b/._x.png", b"notes of macOS"),
        ("./b/y.json", b'{"label": "ant"}'),
        ("./b/y.txt", b"a caption"),
        ("./b/x.png", _png(40)),
        ("./c/x.2021.png", _png(80)),
        ("./c/x.json", b'{"label": "owl"}'),
        ("./c/z.txt", b"a sample without an image"),
    ]
    source = open_source(_tar(tmp_path / "a.tar", files))
    assert _reds(source) == [40, 60, 80]
    assert source.labels is not None
    assert [source.classes[label] for label in source.labels] == ["owl", "ant", "owl"]
    assert source.name(2) == "a.tar/c/x.2021.png"


def test_samples__without_labels(tmp_path: Path) -> None:
    files = {"a.png": _png(0), "a.json": b'{"caption": "x"}', "ü" * 150 + ".png": _png(20)}
    source = open_source(_tar(tmp_path / "a.tar", files))
    assert source.labels is None
    assert source.classes == []
    assert source.name(1) == "a.tar/" + "ü" * 150 + ".png"  # longer than a plain header holds


def test_read__in_workers_and_after_pickling(tmp_path: Path) -> None:
    source = open_source(_shards(tmp_path))
    source.read(0)  # a handle is open
    assert _reds(pickle.loads(pickle.dumps(source))) == _reds(source)
    batches = Batches(source, Order(6, 3, seed=0), image_size=(4, 4))
    direct = [batches[step].images for step in range(4)]
    loaded = [batch.images for batch in load(batches, range(4), workers=2)]
    assert all(torch.equal(one, two) for one, two in zip(direct, loaded, strict=True))


def test_read__holds_few_files_open(tmp_path: Path) -> None:
    for shard in range(100):
        _tar(tmp_path / f"{shard:03d}.tar", {"x.png": _png(shard)})
    source = open_source(tmp_path)
    assert _reds(source) == list(range(100))
    held = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    assert sum(path.startswith(str(tmp_path.resolve())) for path in held) <= 64
    module._open_shard.cache_clear()
    held = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    assert not [path for path in held if path.startswith(str(tmp_path.resolve()))]


def test_read__of_a_shard_that_took_anothers_place(tmp_path: Path) -> None:
    path = _tar(tmp_path / "a.tar", {"x.png": _png(10)})
    first = open_source(path)
    assert _reds(first) == [10]
    _tar(tmp_path / "new.tar", {"w.txt": b"w" * 2000, "x.png": _png(90)}).replace(path)
    second = open_source(path)
    assert _reds(second) == [90]
    assert first.stamp() != second.stamp() == open_source(path).stamp()


def test_read__of_a_shard_cut_while_open_is_an_os_error(tmp_path: Path) -> None:
    source = open_source(_tar(tmp_path / "a.tar", {"x.png": _png(10)}))
    os.truncate(tmp_path / "a.tar", 520)
    with pytest.raises(OSError, match=r"a\.tar has become shorter"):  # so that a run goes on
        source.read(0)


@pytest.mark.parametrize(
    "name", ["../x.png", "/x.png", "a/../../x.png", "C:\\x.png", "..\\x.png", "a/../../../x.txt"]
)
def test_unsafe_names__are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    path = _tar(tmp_path / "in" / "here" / "a.tar", {"ok.png": _png(0), name: _png(0)})
    before = sorted(tmp_path.rglob("*"))
    assert "leads out of it: expected plain names" in _refused(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links__are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        header = tarfile.TarInfo("x.png")
        header.type, header.linkname = kind, "/etc/passwd"
        tar.addfile(header)
    assert "x.png, a link or a special file: expected plain files" in _refused(tmp_path / "a.tar")


def test_truncated_end__is_refused_wherever_it_is(tmp_path: Path) -> None:
    whole = (_shards(tmp_path, 1) / "train-000.tar").read_bytes()
    with tarfile.open(tmp_path / "train-000.tar") as tar:
        starts = [header.offset for header in tar.getmembers()]
        end = tar.offset
    path = tmp_path / "cut.tar"
    # Inside an image, between two files, inside a header, before the zeros at the end, in them.
    for length in (starts[2] + 520, starts[1], starts[1] + 100, end, end + 100, 100, 0):
        path.write_bytes(whole[:length])
        message = _refused(path)
        assert "is damaged or cut off" in message or "cannot be read as a tar file" in message
    path.write_bytes(whole[: starts[1]] + b"\xff" * 512 + whole[starts[1] + 512 :])
    assert "is damaged or cut off" in _refused(path)  # a header in the middle
    path.write_bytes(whole + whole)
    assert "is damaged or cut off" in _refused(path)  # the second half would be lost
    path.write_bytes(whole[: end + 512])  # one block of zeros is an end
    assert len(open_source(path)) == 2


def test_compressed__is_refused_with_advice(tmp_path: Path) -> None:
    whole = (_shards(tmp_path, 1) / "train-000.tar").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(whole))
    (tmp_path / "b.tar").write_bytes(gzip.compress(whole))
    for spec in ("a.tar.gz", "b.tar", "*.tar.gz", ""):
        assert "decompress it to a .tar first" in _refused(f"{tmp_path}/{spec}")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.txt": b"x"}, "there are no images in"),
        ({}, "there are no images in"),
        ({"a.png": b"", "a.cls": b"1", "b.png": b""}, "a.tar/b.png has none: expected a label"),
        ({"a.png": b"", "a.cls": b"cat"}, "a.cls cannot be read as a label, expected an integer"),
        ({"a.png": b"", "a.json": b"{"}, "a.json cannot be read as a label, expected JSON"),
        ({"a.png": b"", "a.json": b'{"label": [1]}'}, "a.json cannot be read as a label"),
        ({"a.png": b"", "a.jpg": b""}, "a.png and a.jpg, which share a name"),
        ({"a.1.png": b"", "a.2.png": b""}, "a.1.png and a.2.png, which share a name"),
        ([("a.png", b""), ("a.png", b"")], "a.png twice"),
    ],
)
def test_bad_shards__get_one_sentence(
    tmp_path: Path, files: dict[str, bytes] | list[tuple[str, bytes]], reason: str
) -> None:
    message = _refused(_tar(tmp_path / "a.tar", files))
    assert reason in message
    assert str(tmp_path / "a.tar") in message


def test_bad_names__get_one_sentence(tmp_path: Path) -> None:
    folder = _shards(tmp_path)
    message = _refused(f"{folder}/train-{{000..004}}.tar")
    assert message == f"2 of 5 shards are not there: the first is {folder}/train-003.tar"
    assert "1 of 1 shards" in _refused(folder / "none.tar")
    assert "matches no files" in _refused(f"{folder}/test-*.tar")
    assert "expected a range as in {000..012}, found {2..0}" in _refused(f"{folder}/{{2..0}}.tar")
    assert "found {0..99999999999}" in _refused(f"{folder}/{{0..99999999999}}.tar")
    assert "more than 1,000,000" in _refused(f"{folder}/{{0..9999}}{{0..9999}}.tar")
    (folder / "text.tar").write_text("hello " * 200)
    assert "cannot be read as a tar file" in _refused(folder / "text.tar")


def test_folder__of_images_may_hold_a_tar_file(tmp_path: Path) -> None:
    _shards(tmp_path, 1)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(_png(0))
    source = open_source(tmp_path)
    assert isinstance(source, FolderSource)
    assert len(source) == 1
