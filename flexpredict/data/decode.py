"""Bytes to pixels."""

import io

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from flexpredict.data.sources.base import Pixels


class BadImage(ValueError):
    """An image that cannot be used, and why."""


def decode(data: bytes | Pixels, channels: int = 3) -> Pixels:
    """An image as (height, width, channels) uint8, upright as its EXIF data says."""
    if isinstance(data, np.ndarray):
        pixels = data
    elif not data:
        raise BadImage("the file is empty")
    elif channels == 3 and data[:2] == b"\xff\xd8" and b"Exif" not in data[:64]:
        pixels = _decode_jpeg(data)
    else:
        pixels = _decode_any(data, channels)
    if pixels.shape[2] != channels:
        raise BadImage(f"it has {pixels.shape[2]} channels, expected {channels}")
    return pixels


def _decode_jpeg(data: bytes) -> Pixels:
    """The fast path; what simplejpeg refuses (CMYK, broken files) Pillow may still know."""
    try:
        return simplejpeg.decode_jpeg(data, colorspace="RGB")
    except ValueError:
        return _decode_any(data, 3)


def _decode_any(data: bytes, channels: int) -> Pixels:
    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
    if mode is None:
        raise BadImage(f"images of {channels} channels can only be given as arrays")
    try:
        with Image.open(io.BytesIO(data)) as image:
            upright = ImageOps.exif_transpose(image)
            return np.asarray(upright.convert(mode)).reshape(upright.height, upright.width, -1)
    except UnidentifiedImageError:
        raise BadImage("it is no image of a known kind") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadImage(str(error)) from None
