"""Shards are the source byte for byte, whatever happens while they are written."""

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image
from processes import Start, wait_until

from flexpredict.data import shard as module
from flexpredict.data.decode import decode
from flexpredict.data.shard import Sharding, shard
from flexpredict.data.sources import MemorySource, ShardSource, Source, open_source
from flexpredict.files import alone_in

IMAGES = 20  # 4 shards of 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes whose names sort otherwise than their numbers; one file is broken."""
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        path = tmp_path / "photos" / f"class {'cab'[number % 3]}" / "x.y" / f"Über.{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(path)
    path.write_bytes(b"no image")
    return tmp_path / "photos"


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _same(source: Source, out: Path) -> ShardSource:
    """The shards, after a look at each of their images."""
    found = open_source(out)
    assert isinstance(found, ShardSource)
    assert [found.read(i) for i in range(len(found))] == [
        source.read(i) for i in range(len(source))
    ]
    if source.labels is None:
        assert found.labels is None
    else:
        assert found.labels is not None
        assert found.labels.tolist() == source.labels.tolist()
        assert found.classes == source.classes
    return found


def _refused(source: Source, out: Path, **options: int) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        shard(source, out, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards__equal_the_source(folder: Path, tmp_path: Path) -> None:
    source, out = open_source(folder), tmp_path / "new" / "shards"
    told: list[tuple[int, int]] = []
    made = shard(source, out, per_shard=6, progress=lambda *now: told.append(now))
    names = [f"shard-{number:06d}.tar" for number in range(4)]
    assert sorted(os.listdir(out)) == ["classes.json", "manifest.json", *names]
    size = sum((out / name).stat().st_size for name in names)
    assert made == Sharding(out, images=IMAGES, shards=4, kept=0, bytes=size)
    assert told == [(6, 20), (12, 20), (18, 20), (20, 20)]
    found = _same(source, out)
    assert source.name(0) == "class a/x.y/Über.1.png"
    assert found.name(0) == "shard-000000.tar/00000000-class_a-x_y-_ber_1.png"
    with tarfile.open(out / names[1]) as tar:  # adjacent, as WebDataset wants them
        keys = [member.name.partition(".")[0] for member in tar.getmembers()]
        assert keys[::2] == keys[1::2]
        assert len(set(keys)) == 6


def test_shards__part_of_them_keeps_the_numbers_of_classes(folder: Path, tmp_path: Path) -> None:
    source, out = open_source(folder), tmp_path / "out"
    shard(source, out, per_shard=3)
    part = open_source(out / "shard-000006.tar")
    assert part.classes == ["class a", "class b", "class c"]
    assert part.labels is not None
    assert part.labels.tolist() == [2, 2]


def test_shards__without_labels(folder: Path, tmp_path: Path) -> None:
    (folder / "0.png").write_bytes((folder / "class a" / "x.y" / "Über.1.png").read_bytes())
    source, out = open_source(folder), tmp_path / "out"
    shard(source, out)
    _same(source, out)
    assert sorted(os.listdir(out)) == ["manifest.json", "shard-000000.tar"]


def test_shards__of_shards_and_lists(folder: Path, tmp_path: Path) -> None:
    shard(open_source(folder), tmp_path / "one", per_shard=6)
    shard(open_source(tmp_path / "one"), tmp_path / "two", per_shard=7)
    _same(open_source(folder), tmp_path / "two")
    names = sorted(map(str, folder.rglob("*.png")))
    # Numbers as labels that do not start at 0, and a file that comes twice.
    rows = [f"{name},{label}\n" for label, name in enumerate([*names, names[0]], start=5)]
    (tmp_path / "list.csv").write_text("".join(rows))
    source = open_source(tmp_path / "list.csv")
    shard(source, tmp_path / "three")
    assert _same(source, tmp_path / "three").classes[:2] == ["5", "6"]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_pixels__come_back_whatever_their_channels(tmp_path: Path, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 4, channels), dtype=np.uint8)
    source = MemorySource(pixels, np.array([2, 0, 2]))
    shard(source, tmp_path / "out")
    found = open_source(tmp_path / "out")
    decoded = [decode(found.read(index), channels) for index in range(3)]
    np.testing.assert_array_equal(decoded, pixels)
    assert found.labels is not None
    assert (found.labels.tolist(), found.classes) == ([2, 0, 2], ["0", "1", "2"])
    assert shard(source, tmp_path / "out").kept == 1  # known again, though arrays have no stamp
    pixels[0, 0, 0, 0] ^= 1
    assert "holds shards of other images" in _refused(source, tmp_path / "out")


def test_bytes__are_a_function_of_the_images(folder: Path, tmp_path: Path) -> None:
    source = open_source(folder)
    for name, workers in (("one", 1), ("two", 2)):
        shard(source, tmp_path / name, per_shard=6, workers=workers)
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    with tarfile.open(tmp_path / "one" / "shard-000000.tar") as tar:
        owners = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar.getmembers()}
    assert owners == {(0, 0, 0, "", "", 0o644)}


# A source that never gets past one image: whoever reads it is killed in the middle of a shard.
_STUCK = """
import signal, sys
from pathlib import Path
from flexpredict.data.shard import shard
from flexpredict.data.sources import FolderSource

class Stuck(FolderSource):
    def read(self, index):
        if index == 12:
            signal.pause()
        return super().read(index)

if __name__ == "__main__":
    shard(Stuck(Path(sys.argv[1])), Path(sys.argv[2]), per_shard=5, workers=int(sys.argv[3]))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_killed__and_resumed_gives_the_same_bytes(
    folder: Path, tmp_path: Path, workers: int, start: Start
) -> None:
    script, out, whole = tmp_path / "stuck.py", tmp_path / "out", tmp_path / "whole"
    script.write_text(_STUCK)
    finished = {0, 1} if workers == 1 else {0, 1, 3}
    names = [f"shard-{number:06d}.tar" for number in sorted(finished)]

    def stuck() -> bool:
        manifest = out / "manifest.json"  # alone: other files come and go
        listed = manifest.is_file() and json.loads(manifest.read_text())
        return bool(listed) and list(listed["shards"]) == names and bool(half())

    def half() -> list[Path]:
        return list(out.glob(".shard-000002.tar.*"))

    process = start(script, folder, out, workers)
    wait_until(stuck, process)
    process.kill()
    process.wait()
    writer = int(half()[0].suffix[1:])
    wait_until(lambda: not _is_alive(writer))  # a worker does not outlive its parent
    assert not (out / "shard-000002.tar").exists()
    before = {name: (out / name).stat().st_mtime_ns for name in names}

    source = open_source(folder)
    made = shard(source, out, per_shard=5)
    assert (made.kept, made.shards) == (len(names), 4)
    assert {name: (out / name).stat().st_mtime_ns for name in names} == before
    shard(source, whole, per_shard=5)
    assert _files(out) == _files(whole)  # and nothing is left of the half one
    _same(source, out)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_damaged_shards__are_made_again(folder: Path, tmp_path: Path) -> None:
    source, out = open_source(folder), tmp_path / "out"
    shard(source, out, per_shard=5)
    whole = _files(out)
    damaged = bytearray(whole["shard-000001.tar"])
    damaged[700] ^= 1  # the size stays
    (out / "shard-000001.tar").write_bytes(damaged)
    (out / "shard-000003.tar").unlink()
    assert shard(source, out, per_shard=5).kept == 2
    assert _files(out) == whole
    assert shard(source, out, per_shard=5).kept == 4


def test_verification__finds_what_the_disk_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worn_disk(handle: int, *_: int) -> None:
        os.pwrite(handle, b"?", 600)  # inside the first image

    source, out = open_source(folder), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", lambda _: None)
        patch.setattr(module.os, "posix_fadvise", worn_disk)
        with pytest.raises(OSError, match=r"shard-000000\.tar reads back otherwise"):
            shard(source, out, per_shard=5)
    assert not (out / "shard-000000.tar").exists()
    shard(source, out, per_shard=5)
    _same(source, out)


def test_unreadable__is_named_and_the_rest_goes_on_later(folder: Path, tmp_path: Path) -> None:
    source, out = open_source(folder), tmp_path / "out"
    path = folder / source.name(8)
    path.rename(tmp_path / "away.png")
    message = _refused(source, out, per_shard=5)
    assert message.startswith(f"{source.name(8)} cannot be read (No such file or directory)")
    assert not (out / "shard-000001.tar").exists()


def test_out__of_somebody_else_is_refused(folder: Path, tmp_path: Path) -> None:
    source, out = open_source(folder), tmp_path / "out"
    out.mkdir()
    (out / ".manifest.json.123").write_text("{")  # of a process killed at its first breath
    shard(source, out, per_shard=5)
    whole = _files(out)
    assert "another number per shard" in _refused(source, out, per_shard=4)
    (folder / "class a" / "more.png").write_bytes(b"")
    assert "holds shards of other images" in _refused(open_source(folder), out, per_shard=5)
    assert _files(out) == whole
    for content in ("{", "[]", '{"shards": {"a": 1}}', '{"shards": 3}'):
        (out / "manifest.json").write_text(content)
        assert "is no manifest of shards" in _refused(source, out, per_shard=5)
    (out / "manifest.json").unlink()
    assert f"{out} is not empty: name a new folder" in _refused(source, out, per_shard=5)
    assert "is a file" in _refused(source, folder / source.name(0))
    assert "cannot be made: Not a directory" in _refused(source, folder / source.name(0) / "x")


def test_out__that_another_process_writes_to_is_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(open_source(folder), out)
    with alone_in(out):
        assert "another process is writing" in _refused(open_source(folder), out)


def test_labels__changed_is_another_source(tmp_path: Path) -> None:
    for name in "xyz":
        (tmp_path / f"{name}.png").write_bytes(b"")
    listing = tmp_path / "list.csv"
    listing.write_text("x.png,cat\ny.png,cat\nz.png,dog\n")
    shard(open_source(listing), tmp_path / "out")
    for labels in ("x.png,cat\ny.png,dog\nz.png,dog\n", "x.png,cat\ny.png,cat\nz.png,owl\n"):
        listing.write_text(labels)
        message = _refused(open_source(listing), tmp_path / "out")
        assert "holds shards of other images" in message


def test_classes__that_do_not_fit_the_labels(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(open_source(folder), out)
    stamp = open_source(out).stamp()
    (out / "classes.json").write_text('{"0": "of another convention"}')
    assert open_source(out).classes == ["0", "1", "2"]
    assert open_source(out).stamp() != stamp
    for content, reason in (('["a", "b"]', "names 2 classes"), ("[", "cannot be read as names")):
        (out / "classes.json").write_text(content)
        with pytest.raises(ValueError, match=reason):
            open_source(out)


def test_command__shards_and_goes_on(folder: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "out"
    arguments = ["data", "shard", folder, "--out", out, "--per-shard", "8"]
    code, text, err = command(*arguments, "--json")
    assert code == 0
    size = sum(path.stat().st_size for path in out.glob("*.tar"))
    assert json.loads(text) == {
        "out": str(out), "images": 20, "shards": 3, "kept": 0, "bytes": size,
    }  # fmt: skip
    assert "images: 20/20" in err
    code, text, _ = command(*arguments)
    assert code == 0
    assert "20 images in 3 shards, 3 of them kept from before" in text
    _same(open_source(folder), out)


def test_command__wrong_input_gets_one_sentence(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    cases: dict[str, list[str | Path]] = {
        "no such folder": [tmp_path / "none", "--out", tmp_path / "new"],
        "is not empty": [folder, "--out", folder],
        "there is no layout": [folder, "--out", tmp_path / "new", "--layout", "x"],
    }
    before = sorted(tmp_path.rglob("*"))
    for reason, arguments in cases.items():
        code, out, err = command("data", "shard", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert reason in err
    assert sorted(tmp_path.rglob("*")) == before
