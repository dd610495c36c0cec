import numpy as np
import pytest
import torch

from flexpredict.data.augment import CROP_DRAWS, crop_resize, random_crop, random_crops
from flexpredict.data.resample import crop_batch

SHAPES = [(64, 64), (375, 500), (50, 40), (1, 1), (7, 300), (90, 64)]


def _boxes(height: int, width: int, count: int) -> np.ndarray:
    draws = np.random.default_rng(height).random((count, CROP_DRAWS))
    sizes = np.tile(np.array([[height, width]]), (count, 1))
    return random_crops(sizes, draws, (0.3, 1.0))


def columns_first(image: np.ndarray, box: list[int], size: tuple[int, int]) -> np.ndarray:
    """Pillow's, in this order; by itself it takes rows first where that is less work."""
    left, top, right, bottom = box
    cut = image[top:bottom, left:right]
    columns = crop_resize(cut, (0, 0, right - left, bottom - top), (bottom - top, size[1]))
    return crop_resize(columns, (0, 0, size[1], bottom - top), size)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [(64, 64), (224, 96)])
@pytest.mark.parametrize("channels", [1, 3])
def test_crop_batch__is_pillows_to_the_bit(
    shape: tuple[int, int], size: tuple[int, int], channels: int
) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, *shape, channels), dtype=np.uint8)
    boxes = _boxes(*shape, 8)
    ours = crop_batch(torch.from_numpy(images), torch.from_numpy(boxes), size)
    assert ours.shape == (8, channels, *size)
    for image, box, found in zip(images, boxes.tolist(), ours, strict=True):
        pixels = found.permute(1, 2, 0).numpy()
        assert np.array_equal(pixels, columns_first(image, box, size))
        assert np.abs(pixels.astype(int) - crop_resize(image, tuple(box), size)).max() <= 1


def test_crop_batch__what_lies_beside_an_image_is_not_seen() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    room = rng.integers(0, 256, (1, 50, 41, 3), dtype=np.uint8)
    room[0, :20, :30] = image
    for box in [*_boxes(20, 30, 20).tolist(), [0, 0, 30, 20]]:
        ours = crop_batch(torch.from_numpy(room), torch.tensor([box]), (16, 24))
        theirs = columns_first(image, box, (16, 24))
        assert np.array_equal(ours[0].permute(1, 2, 0).numpy(), theirs)


def test_random_crops__are_those_of_one_image_at_a_time() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 600, (3000, 2))
    sizes[:500] = rng.integers(1, 4, (500, 2)) * [1, 200]  # strips, where tries fail
    draws = rng.random((3000, CROP_DRAWS))
    for scale in ((0.3, 1.0), (0.9, 1.0)):
        together = random_crops(sizes, draws, scale)
        single = [
            random_crop(int(height), int(width), row, scale)
            for (height, width), row in zip(sizes, draws, strict=True)
        ]
        assert np.array_equal(together, single)
