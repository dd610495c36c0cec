"""Each operation against its usual per-image definition in Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps

from flexpredict.data import augment

ALL = "crop-flip-gray-blur"


def _image(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray:
    """Smooth colours with edges: what a photograph is to a filter."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = np.asarray(
        Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    ).copy()
    image[10:20, 15:30] = rng.integers(0, 256, 3)
    return image


def _batch(images: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def test_crop__boxes_have_the_area_and_ratio_asked_for() -> None:
    rng = np.random.default_rng(0)
    areas, ratios = [], []
    for _ in range(3000):
        draws = rng.random(augment.CROP_DRAWS)
        left, top, right, bottom = augment.random_crop(300, 400, draws, (0.3, 1.0))
        assert 0 <= left < right <= 400
        assert 0 <= top < bottom <= 300
        areas.append((right - left) * (bottom - top) / 120_000)
        ratios.append((right - left) / (bottom - top))
    assert min(areas) > 0.29
    assert max(areas) <= 1
    assert 0.74 < min(ratios) < 0.78
    assert 1.28 < max(ratios) < 1.35


def test_crop__reaches_all_edges_and_extreme_shapes() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array(
        [
            augment.random_crop(20, 20, rng.random(augment.CROP_DRAWS), (0.3, 1.0))
            for _ in range(500)
        ]
    )
    assert boxes.min(0).tolist()[:2] == [0, 0]
    assert boxes.max(0).tolist()[2:] == [20, 20]
    strip = augment.random_crop(1, 500, rng.random(augment.CROP_DRAWS), (0.3, 1.0))
    assert strip[3] - strip[1] == 1
    assert augment.random_crop(1, 1, rng.random(augment.CROP_DRAWS), (0.3, 1.0)) == (0, 0, 1, 1)


def test_crop_resize__is_pillows() -> None:
    image, box = _image(), (5, 3, 45, 40)
    expected = Image.fromarray(image).crop(box).resize((32, 24), Image.Resampling.BILINEAR)
    assert np.array_equal(augment.crop_resize(image, box, (24, 32)), np.asarray(expected))
    five = np.concatenate([image, image[..., :2]], axis=-1)
    assert np.array_equal(augment.crop_resize(five, box, (24, 32))[..., :3], np.asarray(expected))


def test_crop_resize__a_fourth_channel_is_no_alpha() -> None:
    image = np.full((8, 8, 4), 200, dtype=np.uint8)
    image[::2, :, 3] = 0
    resized = augment.crop_resize(image, (0, 0, 8, 8), (5, 5))
    assert (resized[..., :3] == 200).all()


def test_augment_batch__flip_and_gray_are_pillows() -> None:
    image = _image()
    # flip, gray, blur, radius: below 0.5, 0.2 and 0.5 they happen
    draws = torch.tensor([[0.1, 0.9, 0.9, 0.5], [0.9, 0.1, 0.9, 0.5], [0.9, 0.9, 0.9, 0.5]])
    flipped, gray, same = augment.augment_batch(_batch([image] * 3), draws, ALL).permute(0, 2, 3, 1)
    pillow = Image.fromarray(image)
    assert np.array_equal(flipped.numpy(), np.asarray(ImageOps.mirror(pillow)))
    luma = np.asarray(pillow.convert("L").convert("RGB")).astype(int)
    assert np.abs(gray.numpy() - luma).max() <= 1  # Pillow rounds a fixed-point sum
    assert np.array_equal(same.numpy(), image)


def test_augment_batch__smaller_sets_leave_out_what_they_do_not_name() -> None:
    images, draws = _batch([_image()]), torch.zeros(1, 4)  # all of it would happen
    assert torch.equal(augment.augment_batch(images, draws, "crop"), images)
    assert torch.equal(augment.augment_batch(images, draws, "crop-flip"), images.flip(-1))


@pytest.mark.parametrize("radius", [0.1, 0.5, 1.0, 1.5, 2.0])
def test_augment_batch__blur_is_near_pillows(radius: float) -> None:
    """Pillow approximates the Gaussian by three box blurs: within 4 grey levels, 1 on average."""
    image = _image()
    draws = torch.tensor([[0.9, 0.9, 0.1, (radius - 0.1) / 1.9]])
    ours = (
        augment.augment_batch(_batch([image]), draws, ALL)[0].permute(1, 2, 0).numpy().astype(int)
    )
    theirs = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius))).astype(int)
    assert np.abs(ours - theirs).max() <= 4
    assert np.abs(ours - theirs).mean() < 1


def test_augment_batch__shares() -> None:
    draws = torch.rand(4000, 4, generator=torch.Generator().manual_seed(0))
    images = _batch([_image(8, 8)] * 1).expand(4000, -1, -1, -1)
    out = augment.augment_batch(images, draws, ALL)
    gray = (out[:, 0] == out[:, 1]).flatten(1).all(1).double().mean()
    assert abs(gray - 0.2) < 5 * (0.16 / 4000) ** 0.5
