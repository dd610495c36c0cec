"""Bytes to pixels, safely: whatever a file holds, the answer is an image or a `BadImage`.

Colours     palettes, CMYK and gray become what is asked for; alpha is dropped unless it is asked
            for with four channels; of an animation the first frame counts
16 bits     value >> 8: what Pillow itself does with 16-bit colour, so that gray and colour agree,
            and the exact inverse of widening 8 bits to 16 by v · 257
32 bits     integers and floats are refused: no file says which range of them is black to white
n channels  a TIFF file with one gray page per channel; those of 3 channels are colour images
size        as many pixels as Pillow opens (2 · MAX_IMAGE_PIXELS), in whatever shape
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from flexpredict.data.sources.base import Pixels

# Others of Pillow's kinds are no photographs, and some (EPS) would start another program.
_KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


class BadImage(ValueError):
    """An image that cannot be used, and why."""


def decode(data: bytes | Pixels, channels: int = 3) -> Pixels:
    """An image as (height, width, channels) uint8, upright as its EXIF data says."""
    if isinstance(data, np.ndarray):
        pixels = data
    elif not data:
        raise BadImage("the file is empty")
    elif channels == 3 and data[:2] == b"\xff\xd8":
        pixels = _decode_jpeg(data)
    else:
        pixels = _decode_any(data, channels)
    if pixels.shape[2] != channels:
        raise BadImage(f"it has {pixels.shape[2]} channels, expected {channels}")
    return pixels


def _decode_jpeg(data: bytes) -> Pixels:
    """The fast path; what simplejpeg refuses (CMYK, broken files) Pillow may still know."""
    if plain_jpeg_size(data) is not None:
        with suppress(ValueError):
            return simplejpeg.decode_jpeg(data, colorspace="RGB")
    return _decode_any(data, 3)


def plain_jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG that may be decoded as it lies; None for anything else."""
    if data[:2] != b"\xff\xd8":
        return None
    width, height, has_exif = _jpeg_header(data)
    _check_size(width, height)  # simplejpeg would fill any memory
    return (height, width) if width and height and not has_exif else None


def _jpeg_header(data: bytes) -> tuple[int, int, bool]:
    """Width and height, 0 where they are not found, and whether EXIF data stands before them."""
    has_exif, place, last = False, 2, len(data) - 9
    while place <= last and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
            continue
        # C0 … CF start a frame, but for the tables of Huffman and arithmetic coding.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = data[place + 5] << 8 | data[place + 6]
            return data[place + 7] << 8 | data[place + 8], height, has_exif
        if marker == 0xE1 and data[place + 4 : place + 8] == b"Exif":
            has_exif = True
        place += 2 + (data[place + 2] << 8 | data[place + 3])
    return 0, 0, has_exif


def _check_size(width: int, height: int) -> None:
    if Image.MAX_IMAGE_PIXELS is not None and width * height > 2 * Image.MAX_IMAGE_PIXELS:
        raise BadImage(
            f"it has {width} × {height} pixels, more than {2 * Image.MAX_IMAGE_PIXELS:,}: "
            f"make it smaller"
        )


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """As Pillow has it, if it is of a kind that photographs are."""
    # Workers would print what Pillow wonders about (odd EXIF data, large images) every epoch.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data), formats=_KINDS) as image:
            yield image


def _decode_any(data: bytes, channels: int) -> Pixels:
    try:
        with opened(data) as image:
            if channels not in (1, 3) and image.format == "TIFF" and pages(image) == channels:
                return _stack_pages(image, channels)
            return _to_channels(image, channels)
    except BadImage:
        raise
    except UnidentifiedImageError:
        if data[:4] in _TIFF_STARTS:
            raise BadImage(
                "it is a TIFF file of a kind that Pillow does not know, or damaged: "
                "expected gray or colour, or one gray page per channel"
            ) from None
        raise BadImage("it is no image of a known kind") from None
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise BadImage(f"it has more than {limit:,} pixels: make it smaller") from None
    except MemoryError:
        raise
    except Exception as error:  # damaged files make Pillow stumble in any way there is
        raise BadImage(str(error) or type(error).__name__) from None


def _to_channels(image: Image.Image, channels: int) -> Pixels:
    image.load()
    with suppress(Exception):  # the pixels are sound, even where the notes beside them are not
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):
        gray = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return _to_channels(gray, channels)
    if image.mode in ("I", "F"):
        raise BadImage("its pixels are 32-bit numbers of no stated range: save it in 8 or 16 bits")
    mode = _MODES.get(channels)
    if mode is None:
        if len(image.getbands()) != channels:
            raise BadImage(
                f"it has {len(image.getbands())} channels, expected {channels}: save it as a TIFF "
                f"file with one gray page per channel, or give arrays"
            )
        mode = image.mode  # gray with alpha, where two channels are asked for
    return np.asarray(image.convert(mode)).reshape(image.height, image.width, -1)


def pages(image: Image.Image) -> int:
    return getattr(image, "n_frames", 1)


def _stack_pages(image: Image.Image, channels: int) -> Pixels:
    """Pages that are one channel each."""
    planes = []
    for page in range(channels):
        image.seek(page)
        _check_size(*image.size)
        if len(image.getbands()) != 1:
            raise BadImage(f"page {page + 1} of {channels} is {image.mode}: expected gray pages")
        planes.append(_to_channels(image, 1))
        if planes[page].shape != planes[0].shape:
            raise BadImage("its pages differ in size: expected one page per channel")
    return np.concatenate(planes, axis=2)
