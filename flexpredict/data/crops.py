"""A random crop of an image, straight from its bytes where that is faster.

A JPEG of three channels is decoded by simplejpeg, smaller by the largest power of two that keeps
the crop at least as large as the result; all else is decoded by Pillow. The crop is cut out and
resized by torch on uint8, antialiased, into its place in the batch: within 2 grey levels of Pillow
where nothing was scaled in decoding.
"""

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.data.augment import random_crop
from flexpredict.data.decode import decode, plain_jpeg_size
from flexpredict.data.sources.base import Pixels

_FACTORS = (8, 4, 2)
_resize = torch.ops.aten._upsample_bilinear2d_aa.out  # F.interpolate has no out=


class Cropper:
    """Makes random crops, and keeps the memory it decodes into: fresh pages cost more than copies.

    Not for several threads at once.
    """

    def __init__(self, channels: int = 3, scale: tuple[float, float] = (0.3, 1.0)) -> None:
        self.channels, self.scale = channels, scale
        self._memory = np.empty(0, np.uint8)

    def __call__(self, data: bytes | Pixels, draws: NDArray[np.float64], out: Tensor) -> None:
        """Writes a random crop into `out`, (1, c, H, W) uint8, channels last in memory."""
        size, cut = (out.shape[2], out.shape[3]), None
        if self.channels == 3 and isinstance(data, bytes):
            cut = self._crop_of_jpeg(data, draws, size)
        if cut is None:
            pixels = decode(data, self.channels)
            left, top, right, bottom = random_crop(
                pixels.shape[0], pixels.shape[1], draws, self.scale
            )
            cut = pixels[top:bottom, left:right]
        cut = np.ascontiguousarray(cut)
        if not cut.flags.writeable:  # torch would warn
            cut = cut.copy()
        # With an axis made by numpy's None torch would not see that channels come last.
        image = torch.from_numpy(cut.reshape(1, *cut.shape)).permute(0, 3, 1, 2)
        _resize(image, size, False, None, None, out=out)

    def _crop_of_jpeg(
        self, data: bytes, draws: NDArray[np.float64], size: tuple[int, int]
    ) -> Pixels | None:
        """Before resizing; None where Pillow has to look at the file."""
        whole = plain_jpeg_size(data)
        if whole is None:
            return None
        left, top, right, bottom = random_crop(*whole, draws, self.scale)
        factor = dct_factor((bottom - top, right - left), size)
        height, width = (-(-side // factor) for side in whole)
        if len(self._memory) < height * width * 3:
            self._memory = np.empty(height * width * 3, np.uint8)
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(
                data,
                colorspace="RGB",
                min_height=height if factor > 1 else 0,
                min_width=width if factor > 1 else 0,
                min_factor=factor,
                buffer=self._memory,
            )
        except ValueError:
            return None  # CMYK or broken: Pillow may still know it
        if factor > 1:
            left, top = round(left / factor), round(top / factor)
            right = min(pixels.shape[1], max(left + 1, round(right / factor)))
            bottom = min(pixels.shape[0], max(top + 1, round(bottom / factor)))
        return pixels[top:bottom, left:right]


def dct_factor(crop: tuple[int, int], size: tuple[int, int]) -> int:
    """How many times smaller a JPEG may be decoded, the crop still covering the result."""
    for factor in _FACTORS:
        if crop[0] >= factor * size[0] and crop[1] >= factor * size[1]:
            return factor
    return 1
