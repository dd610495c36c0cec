import io
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from flexpredict.data.decode import BadImage, decode
from flexpredict.data.loader import Batches, Order, load
from flexpredict.data.sources import FolderSource, MemorySource, open_source
from flexpredict.data.sources.folder import index_folder
from flexpredict.notice import Notice


class _With(NamedTuple):
    small: torch.Tensor
    large: torch.Tensor
    others: dict[str, tuple[torch.Tensor, ...]]
    words: list[str]


def _beside(epoch: int, place: int, count: int) -> list[list[_With]]:
    small = torch.arange(place, place + count)
    others = (small[:3].bool(), torch.tensor(0.5), small[:0], small.to(torch.bfloat16))
    return [[_With(small, small.repeat(40_000), {"more": others}, [f"{epoch}"])], []]


def _photos(folder: Path, count: int = 12) -> Path:
    """Images of unlike sizes and types in nested folders."""
    rng = np.random.default_rng(0)
    for index in range(count):
        name = (
            folder
            / ("a" if index % 2 else "b")
            / f"{index:02d}.{('jpg', 'png', 'webp')[index % 3]}"
        )
        name.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (40 + index, 60 - index, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(name)
    return folder


def _batches(source: MemorySource | FolderSource, rank: int = 0, world: int = 1) -> Batches:
    return Batches(
        source, Order(len(source), 4, seed=1), image_size=(16, 24), rank=rank, world=world
    )


def test_folder__any_depth_with_labels_by_first_level(tmp_path: Path) -> None:
    source = open_source(_photos(tmp_path))
    assert len(source) == 12
    assert source.classes == ["a", "b"]
    assert source.labels is not None
    assert [source.name(i)[0] for i in range(12)] == ["ab"[label] for label in source.labels]
    (tmp_path / "loose.png").touch()
    assert open_source(tmp_path).labels is None  # a file beside the folders: no classes


def test_folder__links_in_a_loop_end(tmp_path: Path) -> None:
    _photos(tmp_path)
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert len(FolderSource(tmp_path)) == 12


def test_folder__missing_and_empty_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no images"):
        open_source(tmp_path)
    (tmp_path / "file.bin").write_text("x")
    with pytest.raises(ValueError, match="is a file: expected a folder"):
        open_source(tmp_path / "file.bin")


def test_folder__pictures_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    """A telephone's folder: nobody should train on its ten JPEGs without knowing of the rest."""
    for name in ("1.HEIC", "2.heic", "3.dng", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"holds no images \(it has 2 .heic, 1 .dng\): expected"):
        open_source(tmp_path)
    _photos(tmp_path)
    (tmp_path / "._1.HEIC").touch()  # as a Mac leaves them
    said = "has 12 files of kinds that are read; left out are 2 .heic, 1 .dng"
    with pytest.warns(Notice, match=said):
        assert len(open_source(tmp_path)) == 12
    index_folder(tmp_path)
    with pytest.warns(Notice, match=said):  # from its index
        open_source(tmp_path)


def test_folder__of_splits_is_one_set_and_it_is_said(tmp_path: Path) -> None:
    """Who evaluates on val/ should not have pretrained on it unawares."""
    for split in ("train", "val"):
        _photos(tmp_path / split)
    shutil.copy(next((tmp_path / "train").rglob("*.jp*g")), tmp_path / "cover.jpg")
    said = f"all of train/ and val/ in it: name {tmp_path / 'train'} to leave the others for tests"
    with pytest.warns(Notice, match=re.escape(said)):
        assert len(open_source(tmp_path)) == 25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_source(tmp_path / "train")) == 12


def test_memory__wrong_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="not float64 of shape"):
        open_source(np.zeros((2, 4, 4, 3)))  # type: ignore[arg-type]


def test_decode__formats() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for kind, image in {
        "PNG": Image.fromarray(pixels),
        "GIF": Image.fromarray(pixels).quantize(),
        "JPEG": Image.fromarray(pixels).convert("CMYK"),
        "TIFF": Image.fromarray(pixels).convert("L"),
        "WEBP": Image.fromarray(pixels).convert("RGBA"),
    }.items():
        data = io.BytesIO()
        image.save(data, format=kind)
        assert decode(data.getvalue()).shape == (20, 30, 3)
    jpeg = io.BytesIO()
    Image.fromarray(pixels).save(jpeg, format="JPEG")
    with Image.open(jpeg) as opened:
        assert np.array_equal(decode(jpeg.getvalue()), np.asarray(opened))  # the fast path


def test_decode__exif_orientation() -> None:
    image = Image.new("RGB", (30, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # rotate by 90°
    data = io.BytesIO()
    image.save(data, format="JPEG", exif=exif)
    assert decode(data.getvalue()).shape == (30, 20, 3)


@pytest.mark.parametrize("data", [b"", b"text", b"\xff\xd8\xff broken"])
def test_decode__rotten_bytes(data: bytes) -> None:
    with pytest.raises(BadImage):
        decode(data)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches__do_not_depend_on_workers(tmp_path: Path, workers: int) -> None:
    batches = _batches(FolderSource(_photos(tmp_path)))
    direct = [batches[step] for step in range(6)]
    loaded = list(load(batches, range(6), workers=workers))
    for one, two in zip(direct, loaded, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.indices, two.indices)
        assert torch.equal(one.draws, two.draws)
    assert direct[0].images.shape == (4, 3, 16, 24)


def test_batches__ranks_share_the_batch() -> None:
    source = MemorySource(
        np.random.default_rng(0).integers(0, 256, (10, 20, 20, 3), dtype=np.uint8)
    )
    whole = _batches(source)[3]
    parts = [_batches(source, rank, 2)[3] for rank in range(2)]
    assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
    assert [part.place for part in parts] == [whole.place, whole.place + 2]


def test_batches__an_epoch_sees_each_image_once_and_drops_the_rest() -> None:
    source = MemorySource(np.zeros((10, 8, 8, 3), dtype=np.uint8))
    batches = _batches(source)
    assert batches.order.steps_per_epoch == 2
    first = torch.cat([batches[step].indices for step in range(2)])
    second = torch.cat([batches[step].indices for step in range(2, 4)])
    assert len(set(first.tolist())) == len(set(second.tolist())) == 8
    assert first.tolist() != second.tolist()
    assert (batches[2].epoch, batches[2].place) == (1, 0)


def test_batches__crops_are_a_function_of_epoch_and_sample() -> None:
    rng = np.random.default_rng(0)
    source = MemorySource(rng.integers(0, 256, (8, 30, 30, 3), dtype=np.uint8))
    batches = _batches(source)
    epochs = []
    for epoch in range(2):
        seen = {}
        for step in range(2 * epoch, 2 * epoch + 2):
            batch = batches[step]
            seen |= {int(i): image for i, image in zip(batch.indices, batch.images, strict=True)}
        epochs.append(seen)
    assert all(not torch.equal(epochs[0][i], epochs[1][i]) for i in range(8))


def test_batches__too_few_images_or_uneven_ranks_are_refused() -> None:
    source = MemorySource(np.zeros((3, 8, 8, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="3 images do not fill a batch of 4"):
        _batches(source)
    source = MemorySource(np.zeros((9, 8, 8, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="batch_size=4 does not divide over 3 processes"):
        _batches(source, 0, 3)


def test_batches__rotten_files_are_replaced_and_named(tmp_path: Path) -> None:
    folder = _photos(tmp_path)
    (folder / "a" / "01.png").write_bytes(b"not an image")
    (folder / "b" / "02.webp").write_bytes(b"")
    source = FolderSource(folder)
    rejected: dict[int, str] = {}
    for step in range(3):
        batch = _batches(source)[step]
        assert batch.images.shape == (4, 3, 16, 24)
        rejected |= batch.rejected
    assert {source.name(i) for i in rejected} == {
        os.path.join("a", "01.png"),
        os.path.join("b", "02.webp"),
    }


def test_batches__nothing_usable_stops_with_a_sentence(tmp_path: Path) -> None:
    for index in range(5):
        (tmp_path / f"{index}.png").write_bytes(b"nothing")
    source = FolderSource(tmp_path)
    for batch in (_batches(source)[0], *load(_batches(source), range(1), workers=1)):
        assert batch.failure is not None
        assert batch.failure.startswith("5 images in a row cannot be used; the first is")


def test_load__what_goes_with_a_batch_arrives_whole() -> None:
    """Small tensors travel together, large ones as they are; nested as the loop wants them."""

    source = MemorySource(np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    batches = Batches(source, Order(12, 4, seed=1), image_size=(8, 8), beside=_beside)
    plain, sent = (list(load(batches, range(4), workers=workers)) for workers in (0, 2))
    for one, two in zip(plain, sent, strict=True):
        for name in ("images", "draws", "indices"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        assert two.images.is_contiguous(memory_format=torch.channels_last)
        (mine,), none = two.beside
        assert none == []
        assert mine.words == [f"{one.epoch}"]
        theirs = one.beside[0][0]
        pairs = [(mine.small, theirs.small), (mine.large, theirs.large)]
        pairs += zip(mine.others["more"], theirs.others["more"], strict=True)
        for found, true in pairs:
            assert (found.dtype, found.shape) == (true.dtype, true.shape)
            assert torch.equal(found, true)
