"""What is done to an image before an encoder sees it in an evaluation."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.data.augment import CROP_DRAWS, Interpolation, crop_resize, random_crop
from flexpredict.data.decode import BadImage, decode
from flexpredict.data.random import Stream, uniforms
from flexpredict.data.sources.base import Pixels, Source


@dataclass(frozen=True, slots=True)
class Transform:
    """How an image becomes pixels of one size, the same at every look."""

    fit: Literal["crop", "squash"] = "crop"  # squash: the proportions are not kept
    margin: float = 1.0  # crop: the image covers the size times this before its middle is cut out
    interpolation: Interpolation = "bilinear"

    def __call__(self, pixels: Pixels, size: tuple[int, int]) -> Pixels:
        height, width = pixels.shape[:2]
        tall, wide = size if self.fit == "squash" else (round(side * self.margin) for side in size)
        if self.fit == "crop" and tall * width > wide * height:
            wide = width * tall // height
        elif self.fit == "crop":
            tall = height * wide // width
        # One box of the image would be faster; Pillow rounds it a little otherwise.
        resized = crop_resize(pixels, (0, 0, width, height), (tall, wide), self.interpolation)
        top, left = round((tall - size[0]) / 2), round((wide - size[1]) / 2)
        return resized[top : top + size[0], left : left + size[1]]


@dataclass(frozen=True, slots=True)
class RandomTransform:
    """A random crop, or all of the image, and a flip: another look every epoch."""

    crop_scale: tuple[float, float] | None = (0.08, 1.0)  # None: no random crop, but
    fit: Literal["crop", "squash"] = "squash"  # the whole image squashed, or its middle
    flip: bool = True
    interpolation: Interpolation = "bilinear"

    def __call__(self, pixels: Pixels, size: tuple[int, int], draws: NDArray[np.float64]) -> Pixels:
        if self.crop_scale is None:
            view = Transform(self.fit, interpolation=self.interpolation)(pixels, size)
        else:
            box = random_crop(pixels.shape[0], pixels.shape[1], draws[:CROP_DRAWS], self.crop_scale)
            view = crop_resize(pixels, box, size, self.interpolation)
        return view[:, ::-1] if self.flip and draws[CROP_DRAWS] < 0.5 else view


def read_images(
    source: Source,
    rows: Iterable[int],
    size: tuple[int, int],
    transform: Transform,
    channels: int = 3,
) -> Tensor:
    """Images for evaluation, (b, c, H, W) uint8."""
    views = [transform(read_pixels(source, int(row), channels), size) for row in rows]
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()


def read_random_images(
    source: Source,
    rows: NDArray[np.int64],
    size: tuple[int, int],
    transform: RandomTransform,
    channels: int = 3,
    *,
    seed: int,
    epoch: int,
) -> Tensor:
    """Images for training, (b, c, H, W) uint8: a function of (seed, epoch, row)."""
    draws = uniforms(seed, Stream.CROP, epoch, rows, count=CROP_DRAWS + 1)
    views = [
        transform(read_pixels(source, int(row), channels), size, draw)
        for row, draw in zip(rows, draws, strict=True)
    ]
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()


class UnusableImage(ValueError):
    """An image that has to be there, and why it cannot be used."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        return (
            f"{self.name} cannot be used: {self.why}; repair it or take it out, as an evaluation "
            f"leaves no image out by itself (`flexpredict data inspect` names all such)"
        )


def read_pixels(source: Source, index: int, channels: int) -> Pixels:
    """A sample that has to be there: an evaluation replaces no image by another."""
    try:
        return decode(source.read(index), channels)
    except (BadImage, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UnusableImage(source.name(index), why) from None
