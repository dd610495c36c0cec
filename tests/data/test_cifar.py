"""CIFAR in its Python version, and pickles that are read without running what they name."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from miniatures import dump_python2

from flexpredict.data.sources import open_source
from flexpredict.data.sources.pickles import read_pickle


def _refused(sentence: str, root: Path, layout: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_source(root, layout=layout, split="train")


def _labels(source: Any) -> list[int]:
    return source.labels.tolist()


def _rows(seed: int, count: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def _cifar10(folder: Path) -> Path:
    for number in range(1, 6):
        batch = {b"batch_label": b"one", b"labels": [number, 0], b"data": _rows(number)}
        dump_python2(folder / f"data_batch_{number}", batch | {b"filenames": [b"a.png", b"b.png"]})
    dump_python2(folder / "test_batch", {b"labels": [9], b"data": _rows(6, 1)})
    names = [f"class {number}".encode() for number in range(10)]
    dump_python2(folder / "batches.meta", {b"num_vis": 3072, b"label_names": names})
    return folder


def _cifar100(folder: Path) -> Path:
    for name, labels in (("train", [99, 3]), ("test", [4, 0])):
        coarse = {b"coarse_labels": [19, 1], b"data": _rows(len(name))}
        dump_python2(folder / name, coarse | {b"fine_labels": labels})
    names = [f"fine {number}".encode() for number in range(100)]
    dump_python2(folder / "meta", {b"fine_label_names": names, b"coarse_label_names": [b"c"] * 20})
    return folder


def test_cifar10__five_batches_become_images(tmp_path: Path) -> None:
    _cifar10(tmp_path / "cifar-10-batches-py")
    train, test = (open_source(tmp_path, layout="cifar10", split=s) for s in ("train", "test"))
    assert _labels(train) == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert _labels(test) == [9]
    assert train.classes == test.classes == [f"class {number}" for number in range(10)]
    row, pixels = _rows(2)[1], train.read(3)
    assert isinstance(pixels, np.ndarray)
    assert pixels.shape == (32, 32, 3)
    # Red, green and blue planes, each by rows: pixel (5, 7) is at 5 · 32 + 7 of its plane.
    assert pixels[5, 7].tolist() == [row[167], row[1024 + 167], row[2048 + 167]]


def test_cifar100__fine_labels(tmp_path: Path) -> None:
    root = _cifar100(tmp_path)
    train, test = (open_source(root, layout="cifar100", split=s) for s in ("train", "test"))
    assert [_labels(train), _labels(test)] == [[99, 3], [4, 0]]
    assert train.classes[3] == "fine 3"
    assert len(test.classes) == 100
    assert None not in (stamps := {train.stamp(), test.stamp()})
    assert len(stamps) == 2


def test_pickles__arrays_equal_those_that_numpy_unpickles(tmp_path: Path) -> None:
    rows = _rows(0, 3)
    dump_python2(tmp_path / "old", {b"data": rows, b"labels": [1, 70_000, -1]})
    theirs = pickle.loads((tmp_path / "old").read_bytes(), encoding="bytes")
    np.testing.assert_array_equal(theirs[b"data"], rows)  # so the miniature is a true pickle
    ours = read_pickle(tmp_path / "old")
    np.testing.assert_array_equal(ours["data"], rows)
    assert ours["labels"] == theirs[b"labels"]
    for protocol in (2, 3, 4):
        # Written by Python 3, with the names that numpy 1 and 2 use, and by columns.
        value = pickle.dumps({b"data": np.asfortranarray(rows)}, protocol)
        for data in (value, value.replace(b"numpy._core.multi", b"numpy.core.multi")):
            if protocol == 4 and data is not value:
                continue  # lengths stand before its names
            (tmp_path / "new").write_bytes(data)
            np.testing.assert_array_equal(read_pickle(tmp_path / "new")["data"], rows)


class _Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles__nothing_in_them_is_executed(protocol: int, tmp_path: Path) -> None:
    root = _cifar100(tmp_path)
    trap = pickle.dumps({b"data": _Payload(tmp_path / "made")}, protocol)
    (root / "train").write_bytes(trap)
    _refused(r"train asks for posix.mkdir, which no data set needs: nothing", root, "cifar100")
    assert not (tmp_path / "made").exists()
    pickle.loads(trap)
    assert (tmp_path / "made").exists()  # the trap is a real one


@pytest.mark.parametrize(
    "trap",
    [
        b"cbuiltins\neval\nU\x011\x85R.",
        b"cnumpy\nload\nU\x01x\x85R.",
        b"cnumpy.core.multiarray\nfromfile\nU\x01x\x85R.",
        b"c_codecs\nlookup\nU\x01x\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.",
    ],
)
def test_pickles__only_the_names_of_arrays_are_known(trap: bytes, tmp_path: Path) -> None:
    (tmp_path / "trap").write_bytes(trap)
    with pytest.raises(ValueError, match="which no data set needs"):
        read_pickle(tmp_path / "trap")


def test_pickles__damaged_files_get_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    dump_python2(path, {b"labels": [1, 2], b"data": _rows(0)})
    whole = path.read_bytes()
    for length in (0, 1, 2, 10, 40, 100, 200, 3000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"batch is damaged .*: fetch it again"):
            read_pickle(path)
    for data in (
        b"\x80\x02U\x01a.",  # a string
        whole.replace(b"u1", b"f8"),
        whole.replace(b"u1", b"O8"),
        whole.replace(b"K\x01J\x02\x00\x00\x00", b"K\x01J\x03\x00\x00\x00"),  # three rows of two
        b"\x80\x02}U\x01acnumpy\ndtype\nU\x02u1\x85Rs.",  # a type that is no array
        b"\x80\x02r\xff\xff\xff\x7f.",  # a memo of 2³¹ entries
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="batch is damaged"):
            read_pickle(path)


def test_cifar__batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    root = _cifar10(tmp_path)
    batch = root / "data_batch_3"
    dump_python2(batch, {b"labels": [1], b"data": _rows(0)})
    _refused("data_batch_3 has no labels: expected 2, one a row", root, "cifar10")
    dump_python2(batch, {b"labels": [1, 10], b"data": _rows(0)})
    _refused("data_batch_3 has labels outside 0 … 9", root, "cifar10")
    dump_python2(batch, {b"labels": [1], b"data": _rows(0)[:, :3000]})
    _refused("data_batch_3 has no images: expected data of 3072 bytes", root, "cifar10")
    batch.unlink()
    _refused("data_batch_3 is missing", root, "cifar10")
    dump_python2(root / "batches.meta", {b"num_vis": 3072})
    _refused("batches.meta has no label_names", root, "cifar10")
