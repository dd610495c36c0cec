"""Data sets by name: counts that the README of the real files states, and names that fail."""

import io
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexpredict.data.decode import decode
from flexpredict.data.sources import FolderSource, PackedSource, ShardSource, Source, open_source

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder shared/data is not beside the project"
)


def _open(spec: str, folder: Path = SHARED) -> Source:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXPREDICT_DATA", str(folder))
        return open_source(spec)


def _refused(spec: str, folder: Path) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        _open(spec, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _png(red: int = 0) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (red, 0, 0)).save(data, format="PNG")
    return data.getvalue()


def _tar(path: Path, files: list[str]) -> None:
    """Image number n is 20 n red."""
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(files):
            header, content = tarfile.TarInfo(name), _png(20 * number)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))


def _is_gray(jpeg: bytes) -> bool:
    """Whether the header of a frame, among those that come before the pixels, has one channel."""
    place = 2
    while not (0xC0 <= jpeg[place + 1] <= 0xC2):
        place += 2 + int.from_bytes(jpeg[place + 2 : place + 4])
    return jpeg[place + 9] == 1


@pytest.fixture(scope="module")
def tiny_imagenet() -> Source:
    if not SHARED.is_dir():
        pytest.skip("the folder shared/data is not beside the project")
    return _open("tiny-imagenet")


def test_tiny_imagenet__is_the_three_parts_together(tiny_imagenet: Source) -> None:
    assert isinstance(tiny_imagenet, PackedSource)
    assert len(tiny_imagenet) == 110_000
    assert tiny_imagenet.classes == [str(label) for label in range(200)]
    assert Counter(tiny_imagenet._file.tolist()) == {0: 36_850, 1: 36_850, 2: 36_300}
    names = [tiny_imagenet.name(i) for i in range(110_000)]
    assert len(set(names)) == 110_000
    val = np.array([name.startswith("val_") for name in names])
    assert tiny_imagenet.labels is not None
    assert np.bincount(tiny_imagenet.labels[~val], minlength=200).tolist() == [500] * 200
    assert np.bincount(tiny_imagenet.labels[val], minlength=200).tolist() == [50] * 200
    gray = np.array([_is_gray(tiny_imagenet.read(i)) for i in range(110_000)])
    assert [gray[~val].sum(), gray[val].sum()] == [1_821, 168]
    first = tiny_imagenet._file.searchsorted([0, 1, 2])  # an image of each part, and a gray one
    for index in (*first, gray.argmax(), 109_999):
        assert decode(tiny_imagenet.read(int(index))).shape == (64, 64, 3)


def test_tiny_imagenet__splits(tiny_imagenet: Source) -> None:
    val = _open("tiny-imagenet:val")
    assert len(val) == 10_000
    assert val.classes == tiny_imagenet.classes
    assert val.labels is not None
    assert np.bincount(val.labels).tolist() == [50] * 200
    assert val.stamp() != tiny_imagenet.stamp()
    del val  # 200 MiB each
    assert len(_open("tiny-imagenet:train")) == 100_000


@needs_shared
def test_imagenette_sample__counts_and_size() -> None:
    counts = {"": 1_100, ":train": 850, ":val": 250}
    for split, count in counts.items():
        source = _open(f"imagenette-sample{split}")
        assert len(source) == count
        assert source.labels is not None
        assert np.bincount(source.labels).tolist() == [count // 10] * 10
    assert decode(source.read(0)).shape == (224, 224, 3)


@needs_shared
def test_clevr_like__counts_and_size() -> None:
    counts = {"": 125, ":train": 100, ":val": 20, ":test": 5}
    sources = {split: _open(f"clevr-like{split}") for split in counts}
    assert {split: len(source) for split, source in sources.items()} == counts
    assert len({source.stamp() for source in sources.values()}) == 4
    assert sources[":val"].name(3) == "clevr-like-125.tar/val/images/CLEVR_new_000003.png"
    assert sources[":val"].labels is None
    for source in sources.values():
        assert decode(source.read(4)).shape == (224, 224, 3)


@needs_shared
def test_davis_sample__frames_without_masks() -> None:
    source = _open("davis-sample")
    names = [source.name(i) for i in range(len(source))]
    sequences = Counter(name.split("/")[-2] for name in names)
    assert sequences == {"blackswan": 50, "car-shadow": 40}
    assert {Path(name).suffix for name in names} == {".jpg"}
    assert decode(source.read(89)).shape == (480, 854, 3)


def test_names__read_only_what_is_meant(tmp_path: Path) -> None:
    _tar(tmp_path / "clevr-like-125.tar", ["train/images/a.png", "./val/images/b.png", "c.png"])
    frames = ["DAVIS/Annotations/480p/x/00000.png", "DAVIS/JPEGImages/480p/x/00000.jpg"]
    _tar(tmp_path / "davis2016-480p-sample.tar", frames)
    meant = {"clevr-like:train": 0, "clevr-like:val": 20, "davis-sample": 20}
    for name, red in meant.items():
        source = _open(name, tmp_path)
        assert isinstance(source, ShardSource)
        assert len(source) == 1
        assert decode(source.read(0))[0, 0].tolist() == [red, 0, 0]
    assert "there are no images in" in (message := _refused("clevr-like:test", tmp_path))
    assert "clevr-like-125.tar below test/: expected" in message


def test_names__that_cannot_be_opened_get_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in "AC":
        (tmp_path / f"tiny-imagenet-200.part{part}.npz").touch()
    files = ", ".join(f"tiny-imagenet-200.part{part}.npz" for part in "ABC")
    remedy = f"set FLEXPREDICT_DATA to the folder with {files}, or write ./tiny-imagenet for a"
    message = _refused("tiny-imagenet:val", tmp_path)
    assert message.startswith(f"{tmp_path}/tiny-imagenet-200.partB.npz, which tiny-imagenet is")
    assert f"is not there: {remedy} folder" in message
    monkeypatch.delenv("FLEXPREDICT_DATA", raising=False)
    with pytest.raises(ValueError, match=f"but FLEXPREDICT_DATA is not set: {remedy} folder"):
        open_source("tiny-imagenet")
    assert _refused("tiny-imagenet:test", tmp_path) == (
        "tiny-imagenet has no split 'test': choose one of train, val"
    )
    assert "has no split '': choose one of train, val, test" in _refused("clevr-like:", tmp_path)
    assert _refused("davis-sample:train", tmp_path) == (
        "davis-sample has no split 'train': write davis-sample alone"
    )


def test_names__and_folders_that_are_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clevr-like").mkdir()
    (tmp_path / "clevr-like" / "a.png").write_bytes(_png())
    _tar(tmp_path / "clevr-like-125.tar", ["train/a.png", "train/b.png"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEXPREDICT_DATA", raising=False)
    assert isinstance(open_source("clevr-like"), FolderSource)
    monkeypatch.setenv("FLEXPREDICT_DATA", str(tmp_path))
    assert isinstance(open_source("clevr-like"), ShardSource)
    for folder in ("./clevr-like", Path("clevr-like"), tmp_path / "clevr-like"):
        assert isinstance(open_source(folder), FolderSource)
