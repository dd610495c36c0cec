import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from flexpredict.data.sources import MemorySource, open_source
from flexpredict.data.transforms import Transform, read_images
from flexpredict.evaluate.features import cached, extract
from flexpredict.files import cache_folder
from flexpredict.model.vit import Resize, create_encoder


def test_extract__equals_the_encoder_batch_by_batch(pictures: np.ndarray) -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    seen: list[tuple[int, int]] = []
    features = extract(
        encoder,
        MemorySource(pictures),
        layers=2,
        batch_size=40,
        progress=lambda *counts: seen.append(counts),
    )
    torch.testing.assert_close(features, encoder.features(images, layers=2), rtol=1e-4, atol=1e-5)
    assert seen == [(40, 96), (80, 96), (96, 96)]


def test_extract__folder_equals_memory(pictures: np.ndarray, photos: Path) -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    source = open_source(photos)
    order = [int(Path(source.name(i)).stem) for i in range(len(source))]
    memory = extract(encoder, MemorySource(pictures))
    torch.testing.assert_close(extract(encoder, source), memory[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("resize", ["recompute", "interpolate"])
def test_extract__another_size_and_proportion(resize: Resize, pictures: np.ndarray) -> None:
    """Rectangles and larger images: what the encoder itself gives on the same crops."""
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    features = extract(encoder, MemorySource(pictures), image_size=(16, 64), resize=resize)
    images = read_images(MemorySource(pictures), range(96), (16, 64), Transform())
    assert images.shape[2:] == (16, 64)
    torch.testing.assert_close(
        features, encoder.features(images, resize=resize), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match="choose a multiple of 8"):
        extract(encoder, MemorySource(pictures), image_size=(20, 64))


def test_cached__knows_weights_images_and_all_that_changes_features(photos: Path) -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    source = open_source(photos)
    told: list[int] = []

    def count(**changes: object) -> int:
        """How many images had to be encoded."""
        told.clear()
        cached(encoder, source, progress=lambda done, _: told.append(done), **changes)  # type: ignore[arg-type]
        return told[-1] if told else 0

    assert count() == 96
    assert count() == 0
    for changes in (
        {"layers": 2},
        {"image_size": (32, 64)},
        {"image_size": (32, 64), "resize": "interpolate"},
        {"transform": Transform(margin=1.2)},
        {"transform": Transform(interpolation="bicubic", margin=1.2)},
    ):
        assert count(**changes) == 96
        assert count(**changes) == 0
    with torch.no_grad():
        encoder.norm.bias[0] += 1e-3
    assert count() == 96
    files = (cache_folder() / "features").iterdir()
    damaged = max(files, key=lambda path: path.stat().st_mtime_ns)
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert count() == 96  # a damaged file is made again
    assert count() == 0


def test_cached__the_last_layer_is_among_those_of_a_probe(photos: Path) -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    source = open_source(photos)

    def unasked(*_: object) -> None:
        raise AssertionError("the features are there already")

    four = cached(encoder, source, layers=4)
    one = cached(encoder, source, progress=unasked)
    torch.testing.assert_close(one, extract(encoder, source), rtol=0, atol=0)
    assert torch.equal(one, four[:, -encoder.dim :])
    assert torch.equal(cached(encoder, source, layers=4, progress=unasked), four)


def test_extract__names_what_cannot_be_used(photos: Path, tmp_path: Path) -> None:
    """Their features are not numbers, all others are as without them, and nothing is kept."""
    photos = shutil.copytree(photos, tmp_path / "photos")
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    source = open_source(photos)
    whole = extract(encoder, source)
    for row in (3, 50, 51, 52, 53):
        (photos / source.name(row)).write_bytes(b"no image")
    (photos / source.name(95)).unlink()
    unusable: dict[int, str] = {}
    seen: list[int] = []
    found = extract(
        encoder, source, batch_size=2, unusable=unusable, workers=2,
        progress=lambda done, _: seen.append(done),
    )  # fmt: skip
    assert list(unusable) == [3, 50, 51, 52, 53, 95]
    assert set(unusable.values()) == {
        "it is no image of a known kind", "No such file or directory",
    }  # fmt: skip
    assert found[list(unusable)].isnan().all()
    rest = [row for row in range(96) if row not in unusable]
    torch.testing.assert_close(found[rest], whole[rest], rtol=1e-4, atol=1e-5)
    assert seen == list(range(2, 97, 2))
    for _ in range(2):
        torch.testing.assert_close(cached(encoder, source, unusable={})[rest], whole[rest],
                                   rtol=1e-4, atol=1e-5)  # fmt: skip
        with pytest.raises(FileNotFoundError):
            cached(encoder, source)
    (photos / source.name(95)).write_bytes(b"no image")
    for _ in range(2):
        assert cached(encoder, source, unusable={})[95].isnan().all()
        with pytest.raises(ValueError, match="cannot be used"):
            cached(encoder, source)
