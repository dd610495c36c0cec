"""Packed files: a miniature written here, broken ones, and the real ones where they are."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexpredict.data.decode import decode
from flexpredict.data.sources import PackedSource, open_source

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def _pack(path: Path, **changes: np.ndarray) -> Path:
    files = []
    for index in range(6):
        data = io.BytesIO()
        Image.new("RGB", (8 + index, 8), (40 * index, 0, 0)).save(data, format="PNG")
        files.append(data.getvalue())
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), dtype=np.uint8),
        "offset": np.cumsum([0, *map(len, files)]),
        "label": np.array([7, 3, 7, 3, 7, 9], dtype=np.uint8),
        "split": np.array([0, 0, 0, 0, 1, 1], dtype=np.uint8),
        "name": np.array([f"n{i}.png".encode() for i in range(6)]),
    }
    np.savez(path, allow_pickle=False, **arrays | changes)
    return path


def test_packed__images_labels_and_splits(tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.npz")
    whole, train, val = (open_source(f"{path}{split}") for split in ("", ":train", ":val"))
    assert [len(source) for source in (whole, train, val)] == [6, 4, 2]
    assert whole.classes == val.classes == ["3", "7", "9"]
    assert whole.labels is not None
    assert whole.labels.tolist() == [1, 0, 1, 0, 1, 2]
    assert val.labels is not None
    assert val.labels.tolist() == [1, 2]
    assert val.name(1) == "n5.png"
    assert decode(val.read(1)).shape == (8, 13, 3)
    assert decode(val.read(1))[0, 0].tolist() == [200, 0, 0]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("jpeg", np.zeros(9)), ("jpeg", np.zeros((3, 3), np.uint8)), ("jpeg", np.uint8(1)),
        ("offset", np.zeros((7, 1), int)), ("offset", np.array(0)), ("offset", np.arange(1, 8)),
        ("bbox", np.zeros(6, int)), ("bbox", np.zeros((6, 4))), ("bbox", np.zeros((5, 4), int)),
        ("label", np.zeros((6, 2), int)), ("split", np.zeros((6, 1), int)), ("name", np.arange(6)),
    ],
)  # fmt: skip
def test_packed__arrays_of_another_kind_get_one_sentence(
    tmp_path: Path, name: str, array: np.ndarray
) -> None:
    path = _pack(tmp_path / "set.npz", **{name: array})
    with pytest.raises(ValueError, match=r"set\.npz is (no packed file of images|damaged)"):
        open_source(f"{path}:train")


def test_packed__a_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.npz", name=np.array([b"\xff%d" % i for i in range(6)]))
    assert open_source(path).name(2).endswith("2")


def test_packed__broken_files_get_one_sentence(tmp_path: Path) -> None:
    path = _pack(tmp_path / "set.npz")
    with pytest.raises(ValueError, match="no such file"):
        open_source(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="has no split 'test': choose one of train, val"):
        open_source(f"{path}:test")
    with pytest.raises(ValueError, match="is damaged"):
        PackedSource(_pack(tmp_path / "short.npz", jpeg=np.zeros(5, np.uint8)))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"cannot be read as an \.npz file"):
        open_source(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", features=np.zeros(3))
    with pytest.raises(ValueError, match="expected arrays jpeg and offset, found features"):
        open_source(tmp_path / "other.npz")


def _shift(path: Path, labels: list[int]) -> Path:
    return _pack(path, label=np.array(labels), name=np.array([f"{path.stem}{i}" for i in range(6)]))


def test_packed__several_files_are_one_source(tmp_path: Path) -> None:
    _shift(tmp_path / "a.npz", [7, 3, 7, 3, 7, 9])
    _shift(tmp_path / "b.npz", [5, 3, 5, 3, 5, 11])
    singly = [open_source(tmp_path / f"{name}.npz") for name in "ab"]
    images = [source.read(i) for source in singly for i in range(6)]
    for spec in ("*.npz", "{a,b}.npz", "{b,a}.npz"):
        source = open_source(f"{tmp_path}/{spec}")
        assert [source.read(i) for i in range(len(source))] == images
        assert [source.name(i) for i in (0, 5, 6, 11)] == ["a0", "a5", "b0", "b5"]
        assert source.classes == ["3", "5", "7", "9", "11"]  # by value, not as text
        assert source.labels is not None
        assert source.labels.dtype == np.int64
        assert source.labels.tolist() == [2, 0, 2, 0, 2, 3, 1, 0, 1, 0, 1, 4]
    val = pickle.loads(pickle.dumps(open_source(f"{tmp_path}/*.npz:val")))
    assert [val.name(i) for i in range(len(val))] == ["a4", "a5", "b4", "b5"]
    assert val.labels.tolist() == [2, 3, 1, 4]
    assert [val.read(i) for i in range(4)] == [*images[4:6], *images[10:]]
    stamps = {source.stamp(), val.stamp(), *(single.stamp() for single in singly)}
    _shift(tmp_path / "b.npz", [5, 3, 5, 3, 5, 12])
    stamps.add(open_source(f"{tmp_path}/*.npz").stamp())
    assert len(stamps) == 5


def test_packed__boxes_where_all_files_have_them(tmp_path: Path) -> None:
    boxes = np.arange(24, dtype=np.uint8).reshape(6, 4)
    _pack(tmp_path / "a.npz", bbox=boxes)
    _pack(tmp_path / "b.npz", bbox=boxes + 100)
    both = PackedSource([tmp_path / "a.npz", tmp_path / "b.npz"], "val")
    assert both.boxes is not None
    assert both.boxes.tolist() == [*boxes[4:].tolist(), *(boxes[4:] + 100).tolist()]
    _pack(tmp_path / "b.npz")
    assert PackedSource([tmp_path / "a.npz", tmp_path / "b.npz"]).boxes is None


def test_packed__several_files_that_do_not_go_together(tmp_path: Path) -> None:
    _pack(tmp_path / "a.npz")
    whole = dict(np.load(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", allow_pickle=False, jpeg=whole["jpeg"], offset=whole["offset"])
    with pytest.raises(
        ValueError, match=r"1 of 2 packed files from .*a\.npz on have labels: expec"
    ):
        open_source(f"{tmp_path}/*.npz")
    with pytest.raises(ValueError, match=r"b\.npz has no split 'val': choose one of train, val"):
        open_source(f"{tmp_path}/*.npz:val")
    with pytest.raises(ValueError, match=r"c\.npz: no such file"):
        open_source(f"{tmp_path}/{{a,c}}.npz")
    with pytest.raises(ValueError, match=r"x\*\.npz matches no files: expected packed files"):
        open_source(f"{tmp_path}/x*.npz:val")
    del whole["label"]
    np.savez(tmp_path / "a.npz", allow_pickle=False, **whole)
    source = open_source(f"{tmp_path}/*.npz")
    assert [source.labels, source.name(1), source.name(7)] == [None, "n1.png", "b.npz, image 1"]
    for name in "ab":
        _pack(tmp_path / f"{name}.npz", split=np.zeros(6, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"a\.npz \(and 1 more\) has no images in its split val"):
        open_source(f"{tmp_path}/*.npz:val")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder shared/data is not beside the project")
@pytest.mark.parametrize(
    ("name", "train", "val", "classes", "size"),
    [
        ("tiny-imagenet-200.partA.npz", 33_500, 3_350, 67, 64),
        ("tiny-imagenet-200.partC.npz", 33_000, 3_300, 66, 64),
        ("imagenette-224-sample.npz", 850, 250, 10, 224),
    ],
)
def test_packed__real_files_have_their_stated_counts(
    name: str, train: int, val: int, classes: int, size: int
) -> None:
    source = PackedSource(SHARED / name)
    splits = [PackedSource(SHARED / name, split) for split in ("train", "val")]
    assert [len(s) for s in splits] == [train, val]
    assert len(source) == train + val
    assert len(source.classes) == classes
    if "tiny" in name:
        assert source.boxes is not None
        assert source.boxes.shape == (train + val, 4)
        flat = (source.boxes[:, :2] >= source.boxes[:, 2:]).any(1).sum()
        assert flat == {"A": 236, "C": 155}[name[-5]]
    for index in range(0, len(source), len(source) // 50):
        assert decode(source.read(index)).shape == (size, size, 3)  # grayscale files too
