"""What is done to a labelled batch as a whole: mixup, cutmix and random erasing.

Labels become shares: an image that is 70 % one class and 30 % another is labelled so.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

ERASING_DRAWS = 1 + 4 * 10  # whether, and four numbers for each of ten tries
_ERASED_AREA = (0.02, 1 / 3)
_ERASED_RATIO = (0.3, 1 / 0.3)


def smooth_labels(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Labels (B,) as shares (B, classes): `smoothing` is spread over all classes alike."""
    hot = F.one_hot(labels, classes).float()
    return hot * (1 - smoothing) + smoothing / classes


def mix(
    images: Tensor,
    shares: Tensor,
    rng: np.random.Generator,
    *,
    mixup: float = 0.0,
    cutmix: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Each image of a batch mixed with its counterpart in the reversed batch.

    images (B, c, H, W) floats, shares (B, classes). mixup and cutmix are the parameters of their
    Beta distributions; with both, either is made half of the time; 0 switches one off. One draw
    serves the batch.
    """
    if not (mixup or cutmix):
        return images, shares
    cut = rng.random() < 0.5 if mixup and cutmix else bool(cutmix)
    alpha = cutmix if cut else mixup
    share = float(rng.beta(alpha, alpha))
    if cut:
        images, share = paste(images, images.flip(0), share, (rng.random(), rng.random()))
    else:
        images = share * images + (1 - share) * images.flip(0)
    return images, share * shares + (1 - share) * shares.flip(0)


def paste(
    images: Tensor, others: Tensor, share: float, centre: tuple[float, float]
) -> tuple[Tensor, float]:
    """A box of the others put over the images, and the share of pixels that stay.

    The box has the proportions of the image and would leave `share` of it, but for what reaches
    beyond the border. centre: of the box, as parts of height and width.
    """
    height, width = images.shape[-2:]
    side = math.sqrt(1 - share)
    (top, bottom), (left, right) = (
        (
            max(0, round(middle * length - side * length / 2)),
            min(length, round(middle * length + side * length / 2)),
        )
        for middle, length in zip(centre, (height, width), strict=True)
    )
    images = images.clone()
    images[..., top:bottom, left:right] = others[..., top:bottom, left:right]
    return images, 1 - (bottom - top) * (right - left) / (height * width)


def erasing_boxes(
    draws: NDArray[np.float64], size: tuple[int, int], probability: float
) -> NDArray[np.int64]:
    """What to erase of each image, (B, 4): top, bottom, left, right; zeros for nothing.

    draws (B, ERASING_DRAWS) in [0, 1).
    """
    boxes = np.zeros((len(draws), 4), dtype=np.int64)
    height, width = size
    low, high = math.log(_ERASED_RATIO[0]), math.log(_ERASED_RATIO[1])
    for box, (whether, *rest) in zip(boxes, draws, strict=True):
        if whether >= probability:
            continue
        for area_draw, ratio_draw, top_draw, left_draw in np.reshape(rest, (-1, 4)):
            area = _ERASED_AREA[0] + area_draw * (_ERASED_AREA[1] - _ERASED_AREA[0])
            ratio = math.exp(low + ratio_draw * (high - low))
            h = round(math.sqrt(area * height * width * ratio))
            w = round(math.sqrt(area * height * width / ratio))
            if 0 < h < height and 0 < w < width:
                top, left = int(top_draw * (height - h + 1)), int(left_draw * (width - w + 1))
                box[:] = top, top + h, left, left + w
                break
    return boxes


def erase(images: Tensor, boxes: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise in place of the boxes, in images (B, c, H, W) that are normalised."""
    top, bottom, left, right = (edge[:, None, None, None] for edge in boxes.unbind(1))
    row = torch.arange(images.shape[2], device=images.device)[:, None]
    column = torch.arange(images.shape[3], device=images.device)
    inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
    noise = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=images.device)
    return torch.where(inside, noise, images)
