"""RandAugment: a few random distortions per image, all of about the same severity.

Written from the description of the policy that MAE and I-JEPA name `rand-m9-mstd0.5-inc1`: two
operations per image, each made half of the time, of magnitude 9 out of 10 give or take a normal
0.5; `inc1` says that a larger magnitude is a stronger distortion in every operation. All draws
come from outside as uniform numbers, so that they are functions of (seed, epoch, sample index).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from flexpredict.data.sources.base import Pixels

OPERATION_DRAWS = 5  # which, whether, two for a normal number, which sign
_MOST = 10.0  # the magnitude at which the distortions below are whole

# How strong each is at magnitude 10.
_DEGREES = 30.0
_SHEAR = 0.3
_SHIFT = 0.45  # of the side
_ENHANCE = 0.9  # off the factor 1 that changes nothing
_ADDED = 110  # grey levels
_POSTERIZED_BITS = 4  # what is kept at magnitude 0; one more is lost at 2.5, 5, 7.5 and 10

Fill = int | tuple[int, ...]
# An image, a strength from 0 to 1, a sign for what goes both ways, the colour of what is uncovered
Operation = Callable[[Image.Image, float, int, Fill], Image.Image]


@dataclass(frozen=True, slots=True)
class RandAugment:
    """A policy: how many operations, how strong, how often."""

    operations: int = 2
    magnitude: float = 9.0
    magnitude_std: float = 0.5
    probability: float = 0.5

    @property
    def draws(self) -> int:
        """How many uniform numbers an image takes."""
        return self.operations * OPERATION_DRAWS

    @classmethod
    def parse(cls, text: str) -> "RandAugment":
        """A policy from timm's notation: `rand-m9-mstd0.5-inc1`, with n3 and p0.7 where wanted."""
        name, *parts = text.split("-")
        found: dict[str, Any] = {}
        kinds = {"mstd": "magnitude_std", "inc": "", "m": "magnitude", "n": "operations"}
        try:
            if name != "rand":
                raise ValueError
            for part in parts:
                key = next(key for key in (*kinds, "p") if part.startswith(key))
                value = float(part.removeprefix(key))
                found[{**kinds, "p": "probability"}[key]] = int(value) if key == "n" else value
            if found.pop("", 0.0) != 1:  # severity that does not increase is not offered
                raise ValueError
            policy = cls(**found)
            if not (0 <= policy.magnitude <= _MOST and 0 <= policy.probability <= 1):
                raise ValueError
        except (ValueError, StopIteration):
            raise ValueError(
                f"RandAugment {text!r} is not understood: expected the like of rand-m9-mstd0.5-inc1"
            ) from None
        return policy

    def __call__(self, pixels: Pixels, draws: NDArray[np.float64], mean: Sequence[float]) -> Pixels:
        """The image distorted, (height, width, c) uint8 with c = 1 or 3.

        draws: `self.draws` numbers in [0, 1). mean: the colour in [0, 1] of what gets uncovered.
        """
        if pixels.shape[2] not in (1, 3):
            raise ValueError(
                f"RandAugment takes images of 1 or 3 channels, not {pixels.shape[2]}: switch it off"
            )
        fill = tuple(round(255 * part) for part in mean)
        image = Image.fromarray(pixels if len(fill) == 3 else pixels[..., 0])
        for which, whether, first, second, sign in draws.reshape(-1, OPERATION_DRAWS):
            if whether >= self.probability:
                continue
            # Box and Muller; 1 − u lies in (0, 1], where the logarithm is finite.
            normal = math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)
            magnitude = min(max(self.magnitude + self.magnitude_std * normal, 0.0), _MOST)
            operation = list(OPERATIONS.values())[int(which * len(OPERATIONS))]
            image = operation(
                image,
                magnitude / _MOST,
                -1 if sign < 0.5 else 1,
                fill if len(fill) == 3 else fill[0],
            )
        return np.asarray(image).reshape(pixels.shape)


def _rotate(image: Image.Image, strength: float, sign: int, fill: Fill) -> Image.Image:
    angle = sign * strength * _DEGREES
    return image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=_colour(fill))


def _affine(*matrix: float) -> Callable[[Image.Image, Fill], Image.Image]:
    def apply(image: Image.Image, fill: Fill) -> Image.Image:
        return image.transform(
            image.size,
            Image.Transform.AFFINE,
            matrix,
            Image.Resampling.BICUBIC,
            fillcolor=_colour(fill),
        )

    return apply


def _colour(fill: Fill) -> Any:
    return fill  # Pillow's stubs know colours of exactly three or four parts


def _shear_x(image: Image.Image, strength: float, sign: int, fill: Fill) -> Image.Image:
    return _affine(1, sign * strength * _SHEAR, 0, 0, 1, 0)(image, fill)


def _shear_y(image: Image.Image, strength: float, sign: int, fill: Fill) -> Image.Image:
    return _affine(1, 0, 0, sign * strength * _SHEAR, 1, 0)(image, fill)


def _translate_x(image: Image.Image, strength: float, sign: int, fill: Fill) -> Image.Image:
    return _affine(1, 0, sign * strength * _SHIFT * image.width, 0, 1, 0)(image, fill)


def _translate_y(image: Image.Image, strength: float, sign: int, fill: Fill) -> Image.Image:
    return _affine(1, 0, 0, 0, 1, sign * strength * _SHIFT * image.height)(image, fill)


def _auto_contrast(image: Image.Image, *_: object) -> Image.Image:
    return ImageOps.autocontrast(image)


def _equalize(image: Image.Image, *_: object) -> Image.Image:
    return ImageOps.equalize(image)


def _invert(image: Image.Image, *_: object) -> Image.Image:
    return ImageOps.invert(image)


def _posterize(image: Image.Image, strength: float, *_: object) -> Image.Image:
    bits = _POSTERIZED_BITS - int(strength * _POSTERIZED_BITS)
    mask = 256 - (1 << (8 - bits))  # no bits at full strength: black
    return image.point([value & mask for value in range(256)] * len(image.getbands()))


def _solarize(image: Image.Image, strength: float, *_: object) -> Image.Image:
    return ImageOps.solarize(image, 256 - int(strength * 256))


def _solarize_add(image: Image.Image, strength: float, *_: object) -> Image.Image:
    """Dark values become brighter."""
    added = int(strength * _ADDED)
    table = [min(255, value + added) if value < 128 else value for value in range(256)]
    return image.point(table * len(image.getbands()))


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    def apply(image: Image.Image, strength: float, sign: int, _: Fill) -> Image.Image:
        return kind(image).enhance(1 + sign * strength * _ENHANCE)

    return apply


OPERATIONS: dict[str, Operation] = {
    "auto-contrast": _auto_contrast,
    "equalize": _equalize,
    "invert": _invert,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize-add": _solarize_add,
    "colour": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear-x": _shear_x,
    "shear-y": _shear_y,
    "translate-x": _translate_x,
    "translate-y": _translate_y,
}
