"""Random crops, and the rest of the named sets: `crop`, `crop-flip` and `crop-flip-gray-blur`.

Crops are made image by image in the workers, since images differ in size. Flip, grayscale and blur
are made on whole batches, on the device. All parameters come as uniform numbers from outside, so
that they are functions of (seed, epoch, sample index).
"""

import functools
import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flexpredict.data.sources.base import Pixels

CROP_DRAWS = 4 * 10  # four numbers for each of ten tries
BATCH_DRAWS = 4  # flip, grayscale, blur or not, blur radius

_RATIO = (3 / 4, 4 / 3)
_LOG_RATIO = (math.log(_RATIO[0]), math.log(_RATIO[1]))
_BLUR_RADIUS = (0.1, 2.0)
_BLUR_REACH = 6  # pixels to each side: three standard deviations of the widest blur
_LUMA = (0.299, 0.587, 0.114)  # of ITU-R 601-2, as Pillow's mode L

Box = tuple[int, int, int, int]  # left, top, right, bottom
Augment = Literal["crop", "crop-flip", "crop-flip-gray-blur"]
Interpolation = Literal["bilinear", "bicubic"]
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def random_crop(
    height: int, width: int, draws: NDArray[np.float64], scale: tuple[float, float]
) -> Box:
    """A box of random area and aspect ratio; the middle of the image if ten tries do not fit."""
    numbers = draws.tolist()  # Python's own are several times as fast, one by one
    for at in range(0, len(numbers), 4):
        area_draw, ratio_draw, top_draw, left_draw = numbers[at : at + 4]
        area = height * width * (scale[0] + area_draw * (scale[1] - scale[0]))
        ratio = math.exp(_LOG_RATIO[0] + ratio_draw * (_LOG_RATIO[1] - _LOG_RATIO[0]))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(top_draw * (height - h + 1)), int(left_draw * (width - w + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * _RATIO[1]))
    h = min(height, round(width / _RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def random_crops(
    sizes: NDArray[np.int64], draws: NDArray[np.float64], scale: tuple[float, float]
) -> NDArray[np.int64]:
    """`random_crop` for many images at once: sizes (B, 2), height and width -> boxes (B, 4)."""
    height, width = sizes[:, :1], sizes[:, 1:]
    area, ratio, top, left = np.moveaxis(draws.reshape(len(draws), -1, 4), -1, 0)  # (B, tries)
    area = height * width * (scale[0] + area * (scale[1] - scale[0]))
    ratio = np.exp(_LOG_RATIO[0] + ratio * (_LOG_RATIO[1] - _LOG_RATIO[0]))
    w, h = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    top, left = np.floor(top * (height - h + 1)), np.floor(left * (width - w + 1))
    boxes = np.stack([left, top, left + w, top + h], axis=-1).astype(np.int64)  # (B, tries, 4)
    chosen = np.take_along_axis(boxes, fits.argmax(1)[:, None, None], axis=1)[:, 0]
    width = np.minimum(width, np.rint(height * _RATIO[1]).astype(np.int64))
    height = np.minimum(height, np.rint(sizes[:, 1:] / _RATIO[0]).astype(np.int64))
    corner = (sizes[:, ::-1] - np.hstack([width, height])) // 2
    middle = np.hstack([corner, corner + np.hstack([width, height])])
    return np.where(fits.any(axis=1, keepdims=True), chosen, middle)


def crop_resize(
    pixels: Pixels,
    box: Box,
    size: tuple[int, int],
    interpolation: Interpolation = "bilinear",
) -> Pixels:
    """A box of the image, cut out and resized to (height, width), antialiased, by Pillow."""
    left, top, right, bottom = box
    cut = pixels[top:bottom, left:right]
    if cut.shape[:2] == size:
        return cut
    channels, filter_ = cut.shape[2], _FILTERS[interpolation]
    if channels == 3:  # with four, Pillow would take the last for an alpha channel
        return np.asarray(Image.fromarray(cut).resize(size[::-1], filter_))
    planes = [
        Image.fromarray(cut[..., channel]).resize(size[::-1], filter_)
        for channel in range(channels)
    ]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


def augment_batch(images: Tensor, draws: Tensor, which: Augment) -> Tensor:
    """What follows the crop. Flip 0.5, grayscale 0.2, blur 0.5 is the released StoP code's set.

    images (B, c, H, W) in uint8, and so is the result; draws (B, BATCH_DRAWS) in [0, 1).
    """
    if which == "crop":
        return images
    draws = draws.to(images.device, non_blocking=True)
    flip, gray, blurred, radius = (column[:, None, None, None] for column in draws.unbind(1))
    images = torch.where(flip < 0.5, images.flip(-1), images)
    if which == "crop-flip":
        return images
    x = images.float()
    if images.shape[1] == 3:
        luma = (x * _luma(x.device)).sum(1, keepdim=True)
        x = torch.where(gray < 0.2, luma.round(), x)
    low, high = _BLUR_RADIUS
    smooth = gaussian_blur(x, low + radius.flatten() * (high - low))
    x = torch.where(blurred < 0.5, smooth, x)
    return x.round().clamp(0, 255).to(torch.uint8)


@functools.cache
def _luma(device: torch.device) -> Tensor:
    """Made once: what is copied to a GPU from here makes the host wait for all that is queued."""
    return torch.tensor(_LUMA, device=device).view(1, 3, 1, 1)


def gaussian_blur(images: Tensor, radius: Tensor) -> Tensor:
    """Each image blurred by a Gaussian of its own standard deviation, edges repeated."""
    batch, channels, height, width = images.shape
    offset = torch.arange(-_BLUR_REACH, _BLUR_REACH + 1, device=images.device)
    kernel = torch.softmax(-(offset**2) / (2 * radius[:, None] ** 2), dim=1).to(images.dtype)
    kernel = kernel.repeat_interleave(channels, dim=0)[:, None]  # (B · c, 1, taps)
    planes = images.reshape(1, batch * channels, height, width)
    reach = (_BLUR_REACH,) * 2
    planes = F.pad(planes, (*reach, 0, 0), mode="replicate")
    planes = F.conv2d(planes, kernel[:, :, None, :], groups=batch * channels)
    planes = F.pad(planes, (0, 0, *reach), mode="replicate")
    planes = F.conv2d(planes, kernel[:, :, :, None], groups=batch * channels)
    return planes.view(batch, channels, height, width)
