from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flexpredict.data.augment import CROP_DRAWS
from flexpredict.data.sources import FolderSource
from flexpredict.data.transforms import RandomTransform, Transform, read_images, read_random_images

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(375, 500), (500, 333), (64, 64), (1200, 701), (240, 320)])
def test_transform__is_resize_256_and_crop_224(shape: tuple[int, int], interpolation: str) -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    height, width = shape
    tall, wide = (256, int(256 * width / height))
    if height > width:
        tall, wide = int(256 * height / width), 256
    whole = np.asarray(Image.fromarray(picture).resize((wide, tall), FILTERS[interpolation]))
    top, left = round((tall - 224) / 2), round((wide - 224) / 2)
    transform = Transform(margin=256 / 224, interpolation=interpolation)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        transform(picture, (224, 224)), whole[top : top + 224, left : left + 224]
    )


def test_transform__squash_keeps_the_whole_picture() -> None:
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:, :4] = 255
    squashed = Transform("squash")(picture, (20, 20))
    assert squashed[:, 0].min() > 200
    assert Transform()(picture, (20, 20)).max() == 0  # the crop leaves the left edge out


def test_transform__rectangles() -> None:
    picture = np.arange(30 * 30 * 3, dtype=np.uint8).reshape(30, 30, 3)
    np.testing.assert_array_equal(Transform()(picture, (15, 30)), picture[8:23])


def test_random_transform__flips_half_and_crops() -> None:
    picture = np.zeros((10, 10, 3), np.uint8)
    picture[:, :5] = 255
    draws = np.zeros(CROP_DRAWS + 1)
    whole = RandomTransform(crop_scale=None)
    assert whole(picture, (10, 10), draws)[0, 0, 0] == 0
    draws[-1] = 0.6
    assert whole(picture, (10, 10), draws)[0, 0, 0] == 255
    draws[:] = 0.5
    crop = RandomTransform(crop_scale=(0.25, 0.25))(picture, (10, 10), draws)
    assert (crop[:, 4] != crop[:, 5]).any()  # its middle is the picture's


def test_read_images__refuses_rotten_files(photos: Path, tmp_path: Path) -> None:
    source = FolderSource(photos)
    assert read_images(source, range(5), (16, 16), Transform()).shape == (5, 3, 16, 16)
    (tmp_path / "01.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"01.png cannot be used: the file is empty"):
        read_images(FolderSource(tmp_path), [0], (16, 16), Transform())


def test_read_random_images__is_a_function_of_seed_epoch_and_row(photos: Path) -> None:
    source, rows = FolderSource(photos), np.arange(8)

    def look(rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        made = read_random_images(source, rows, (16, 16), RandomTransform(), seed=seed, epoch=epoch)
        return made.numpy()

    first = look(rows, 0, 0)
    np.testing.assert_array_equal(first[3:5], look(rows[3:5], 0, 0))
    assert (first != look(rows, 0, 1)).any()
    assert (first != look(rows, 1, 0)).any()
