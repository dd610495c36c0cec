"""A random crop of an image, straight from its bytes where that is faster.

A JPEG of three channels is decoded by simplejpeg, smaller by the largest power of two that keeps
the crop at least as large as the result, cut out, and resized by torch on uint8, antialiased:
within 2 grey levels of Pillow where nothing was scaled in decoding. All else is left to Pillow.
"""

import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from flexpredict.data.augment import Box, crop_resize, random_crop
from flexpredict.data.decode import decode, plain_jpeg_size
from flexpredict.data.sources.base import Pixels

_FACTORS = (8, 4, 2)


def crop_of(
    data: bytes | Pixels,
    channels: int,
    draws: NDArray[np.float64],
    scale: tuple[float, float],
    size: tuple[int, int],
) -> Pixels:
    """A random crop at a size (height, width)."""
    if channels == 3 and isinstance(data, bytes) and (whole := plain_jpeg_size(data)) is not None:
        box = random_crop(*whole, draws, scale)
        try:
            return _crop_of_jpeg(data, whole, box, size)
        except ValueError:
            pass  # CMYK or broken: Pillow may still know it
    pixels = decode(data, channels)
    box = random_crop(pixels.shape[0], pixels.shape[1], draws, scale)
    return crop_resize(pixels, box, size)


def _crop_of_jpeg(data: bytes, whole: tuple[int, int], box: Box, size: tuple[int, int]) -> Pixels:
    left, top, right, bottom = box
    factor = dct_factor((bottom - top, right - left), size)
    if factor == 1:
        pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    else:
        small = [-(-side // factor) for side in whole]
        pixels = simplejpeg.decode_jpeg(
            data, colorspace="RGB", min_height=small[0], min_width=small[1], min_factor=factor
        )
        left, top = round(left / factor), round(top / factor)
        right = min(pixels.shape[1], max(left + 1, round(right / factor)))
        bottom = min(pixels.shape[0], max(top + 1, round(bottom / factor)))
    cut = pixels[top:bottom, left:right]
    if cut.shape[:2] == size:
        return cut
    # The new axis comes first in numpy: torch would else not see that channels come last, and give
    # its result in another order, which is slow to copy.
    planes = torch.from_numpy(np.ascontiguousarray(cut)[None]).permute(0, 3, 1, 2)
    resized = F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    return resized[0].permute(1, 2, 0).numpy()


def dct_factor(crop: tuple[int, int], size: tuple[int, int]) -> int:
    """How many times smaller a JPEG may be decoded, the crop still covering the result."""
    for factor in _FACTORS:
        if crop[0] >= factor * size[0] and crop[1] >= factor * size[1]:
            return factor
    return 1
