"""Packed files: a miniature written here, broken ones, and the real ones where they are."""

import io
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
    for index in range(0, len(source), len(source) // 50):
        assert decode(source.read(index)).shape == (size, size, 3)  # grayscale files too
