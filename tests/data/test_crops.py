import io

import numpy as np
import pytest
import torch
from PIL import Image

from flexpredict.data.augment import CROP_DRAWS, random_crop
from flexpredict.data.crops import Cropper, dct_factor
from flexpredict.data.decode import BadImage, decode


def _photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Structure at every scale, as photographs have."""
    rng = np.random.default_rng(seed)
    mixed = np.zeros((height, width, 3))
    for depth, side in enumerate((3, 8, 24, 80)):
        noise = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        layer = noise.resize((width, height), Image.Resampling.BICUBIC)
        mixed += np.asarray(layer, dtype=float) / 2**depth
    return Image.fromarray(np.clip(mixed / 1.875, 0, 255).astype(np.uint8))


def _jpeg(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def _usual(pixels: np.ndarray, draws: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Crop, then resize: what torchvision's RandomResizedCrop does to a Pillow image."""
    box = random_crop(pixels.shape[0], pixels.shape[1], draws, (0.3, 1.0))
    image = Image.fromarray(pixels).crop(box)
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))


def crop_of(data: bytes, draws: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    out = torch.zeros((1, *size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    Cropper(3, (0.3, 1.0))(data, draws, out)
    return out[0].permute(1, 2, 0).numpy()


def _draws(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(CROP_DRAWS)


@pytest.mark.parametrize("shape", [(500, 375), (64, 64), (90, 301), (224, 224)])
@pytest.mark.parametrize("size", [(224, 224), (64, 64), (48, 96)])
def test_crop__agrees_with_pillow(shape: tuple[int, int], size: tuple[int, int]) -> None:
    data = _jpeg(_photo(*shape))
    pixels = decode(data)
    unscaled = 0
    for seed in range(20):
        ours = crop_of(data, _draws(seed), size)
        left, top, right, bottom = random_crop(*pixels.shape[:2], _draws(seed), (0.3, 1.0))
        theirs = _usual(pixels, _draws(seed), size)
        assert ours.shape == theirs.shape == (*size, 3)
        difference = np.abs(ours.astype(int) - theirs)
        if dct_factor((bottom - top, right - left), size) == 1:
            unscaled += 1
            assert difference.max() <= 2
        else:  # a DCT-scaled image is another low-pass filter than a triangle
            assert difference.mean() < 2
    assert unscaled or shape == (500, 375)


def test_crop__large_photographs_are_decoded_small() -> None:
    assert dct_factor((447, 900), (224, 224)) == 1
    assert dct_factor((448, 900), (224, 224)) == 2
    assert dct_factor((1800, 1800), (224, 224)) == 8
    data = _jpeg(_photo(1601, 1203))
    for seed in range(10):
        ours = crop_of(data, _draws(seed), (64, 64))
        pixels = decode(data)
        theirs = _usual(pixels, _draws(seed), (64, 64))
        assert np.abs(ours.astype(int) - theirs).mean() < 2


def test_crop__everything_else_goes_through_pillow() -> None:
    image = _photo(80, 60)
    draws = _draws(0)
    turned = image.getexif()
    turned[0x0112] = 6  # a quarter turn
    kinds = {
        "cmyk": _jpeg(image.convert("CMYK")),
        "exif": _jpeg(image, exif=turned.tobytes()),
        "gray": _jpeg(image.convert("L")),
    }
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    kinds["png"] = buffer.getvalue()
    for name, data in kinds.items():
        theirs = _usual(decode(data), draws, (32, 32))
        ours = crop_of(data, draws, (32, 32))
        # Through Pillow, a crop's border sees a little of what is beside it.
        assert np.abs(ours.astype(int) - theirs)[2:-2, 2:-2].max() <= 2, name
    assert decode(kinds["exif"]).shape == (80, 60, 3)
    with pytest.raises(BadImage):
        crop_of(_jpeg(image)[:300], draws, (32, 32))
    with pytest.raises(BadImage, match="empty"):
        crop_of(b"", draws, (32, 32))
