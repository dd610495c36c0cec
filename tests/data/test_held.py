import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flexpredict.data import held as holding
from flexpredict.data.augment import crop_resize, random_crop
from flexpredict.data.decode import BadImage, decode
from flexpredict.data.held import Held, place_for
from flexpredict.data.loader import Batches, DeviceBatches, Order, hold, load
from flexpredict.data.random import Stream, uniforms
from flexpredict.data.sources import FolderSource, MemorySource, open_source

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """600 images of unlike sizes, two of which cannot be used: more than one block."""
    rng = np.random.default_rng(0)
    for index in range(600):
        pixels = rng.integers(0, 256, (8 + index % 9, 20 - index % 7, 3), dtype=np.uint8)
        name = tmp_path / f"{index:03d}.{'jpg' if index % 2 else 'png'}"
        Image.fromarray(pixels).save(name)
    (tmp_path / "005.jpg").write_bytes(b"not an image")
    (tmp_path / "300.png").write_bytes(b"")
    return tmp_path


def _batches(source: FolderSource | MemorySource, rank: int = 0, world: int = 1) -> Batches:
    order = Order(len(source), 64, seed=2)
    return Batches(source, order, image_size=(12, 16), rank=rank, world=world)


def test_held__is_the_source_decoded(folder: Path) -> None:
    source = FolderSource(folder)
    seen: list[tuple[int, int]] = []
    before = warnings.filters[:]
    held = Held(source, progress=lambda done, total: seen.append((done, total)))
    assert warnings.filters == before
    assert seen[-1] == (600, 600)
    assert len(held) == 600
    assert set(held.rejected) == {5, 300}
    for index in range(600):
        if index in held.rejected:
            with pytest.raises(BadImage):
                held.read(index)
        else:
            assert np.array_equal(held.read(index), decode(source.read(index)))
            assert held.name(index) == source.name(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_ram__batches_are_those_of_files(folder: Path, workers: int) -> None:
    """To the bit: a JPEG of twice the size would be decoded smaller, these are small."""
    files = list(load(_batches(FolderSource(folder)), range(9)))
    kept = hold(_batches(FolderSource(folder)), "ram", CPU)
    for one, two in zip(files, load(kept, range(9), workers=workers), strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.indices, two.indices)
        assert one.rejected.keys() == two.rejected.keys()


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("at_once", [1 << 27, 3000])
def test_device__crops_are_pillows_of_the_same_boxes(
    folder: Path, alike: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "_AT_ONCE", at_once)
    source: FolderSource | MemorySource = FolderSource(folder)
    if alike:
        images = np.random.default_rng(0).integers(0, 256, (100, 20, 30, 3), dtype=np.uint8)
        source = MemorySource(images)
    batches = hold(_batches(source), "device", CPU)
    assert isinstance(batches, DeviceBatches)
    plain = _batches(source)
    for step, batch in enumerate(load(batches, range(3))):
        reference = plain[step]
        assert torch.equal(batch.indices, reference.indices)
        assert torch.equal(batch.draws, reference.draws)
        assert batch.rejected.keys() == reference.rejected.keys()
        assert (batch.images.int() - reference.images.int()).abs().max() <= 2
        draws = uniforms(2, Stream.CROP, batch.epoch, batch.indices.numpy(), count=40)
        for index, row, image in zip(batch.indices.tolist(), draws, batch.images, strict=True):
            while index in batch.rejected:
                index += 1
            pixels = decode(source.read(index))
            box = random_crop(pixels.shape[0], pixels.shape[1], row, (0.3, 1.0))
            theirs = crop_resize(pixels, box, (12, 16))
            assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - theirs).max() <= 1


def test_device__ranks_and_starts_see_the_same(folder: Path) -> None:
    whole = [b.images for b in load(hold(_batches(FolderSource(folder)), "device", CPU), range(12))]
    parts = [
        load(hold(_batches(FolderSource(folder), rank, 2), "device", CPU), range(5, 12))
        for rank in range(2)
    ]
    for step, pair in enumerate(zip(*parts, strict=True), start=5):
        assert torch.equal(torch.cat([batch.images for batch in pair]), whole[step])


def test_device__crops_are_not_timed(folder: Path) -> None:
    seen: list[Any] = []

    def timed(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            seen.append(batch.images)
            yield batch

    held = hold(_batches(FolderSource(folder)), "device", CPU)
    (batch,) = load(held, range(1), timed=timed)
    assert [boxes.shape for boxes in seen] == [(len(batch.images), 5)]


def test_device__nothing_usable_is_said_in_a_sentence(tmp_path: Path) -> None:
    for index in range(70):
        (tmp_path / f"{index}.png").write_bytes(b"nothing")
    (batch,) = load(hold(_batches(FolderSource(tmp_path)), "device", CPU), range(1))
    assert batch.failure is not None
    assert batch.failure.startswith("70 images in a row cannot be used; the first is")


def test_place__follows_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = MemorySource(np.zeros((50, 10, 10, 3), dtype=np.uint8))  # 15,000 bytes
    for free, share, place in ((40_000, 1, "ram"), (30_000, 1, "none"), (40_000, 2, "none")):
        monkeypatch.setattr(holding, "free_memory", lambda free=free: free)
        assert place_for(source, 3, CPU, share=share) == place
    (tmp_path / "1.png").write_bytes(b"nothing")
    assert place_for(open_source(tmp_path), 3, CPU) == "none"  # nobody knows how large it is


def test_device__unlike_shapes_take_no_room_from_each_other(tmp_path: Path) -> None:
    """One tall and one wide image: neither is laid out as tall and as wide as both."""
    Image.new("RGB", (10, 4000), (9, 9, 9)).save(tmp_path / "tall.png")
    Image.new("RGB", (4000, 10), (9, 9, 9)).save(tmp_path / "wide.png")
    batches = Batches(FolderSource(tmp_path), Order(2, 2, seed=0), image_size=(16, 16))
    held = hold(batches, "device", CPU)
    assert isinstance(held, DeviceBatches)
    seen: list[tuple[int, ...]] = []
    lay = held.held._side_by_side

    def noting(indices: torch.Tensor, height: int, width: int) -> torch.Tensor:
        seen.append((len(indices), height, width))
        return lay(indices, height, width)

    held.held._side_by_side = noting  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holding, "_AT_ONCE", 1 << 20)
        (batch,) = load(held, range(1))
    assert sorted(seen) == [(1, 10, 4000), (1, 4000, 10)]
    assert (batch.images == 9).all()


def test_held__stops_where_the_images_do_not_fit(folder: Path) -> None:
    with pytest.raises(holding.TooLarge, match="GiB decoded: set hold=none"):
        Held(FolderSource(folder), limit=100_000)


def test_place__somebody_elses_source_is_not_read_by_threads() -> None:
    class Theirs:
        labels, classes = None, []  # type: ignore[var-annotated]

        def __len__(self) -> int:
            return 4

        def read(self, index: int) -> np.ndarray:
            return np.full((8, 8, 3), index, dtype=np.uint8)

        def name(self, index: int) -> str:
            return str(index)

        def stamp(self) -> None:
            return None

    assert place_for(Theirs(), 3, CPU) == "none"


def test_place__no_copy_for_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemorySource(np.zeros((5, 8, 8, 3), dtype=np.uint8))
    monkeypatch.setattr(holding, "get_start_method", lambda: "spawn")
    assert place_for(source, 3, CPU, workers=2) == "none"
    assert place_for(source, 3, CPU, workers=0) == "ram"
