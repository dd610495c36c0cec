"""What would be lost of images without a word: said once, before they are trained on."""

import struct
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from PIL import Image

from flexpredict.data.decode import opened, pages
from flexpredict.data.sources import Source

_LOOKED_AT = 8  # images, evenly spread
_DARK = 4096  # of 65,536: 12 bits
_ENLARGED = 1.5  # times, from where on it is said
_BROKEN = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)


def doubts(source: Source, channels: int, size: tuple[int, int] | None = None) -> list[str]:
    """Sentences on pages that are not read, on 16 bits of which few are used, on a fourth channel
    that is not there, and on images that are enlarged.

    size: height and width that images are brought to, if that is known
    """
    found: dict[str, str] = {}
    brightest, sides = [], []
    for row in np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(int)).tolist():
        with suppress(*_BROKEN):  # what cannot be read is named elsewhere
            data = source.read(row)
            if isinstance(data, np.ndarray):
                sides.append(data.shape[:2])
                continue
            with opened(data) as image:
                sides.append((image.height, image.width))
                for kind, sentence in _of_one(image, source.name(row), channels):
                    found.setdefault(kind, sentence)
                if image.mode.startswith("I;16"):
                    brightest.append(int(np.asarray(image).max()))
    if brightest and max(brightest) < _DARK:
        found["dark"] = (
            f"images have 16 bits, of which numbers up to {max(brightest):,} are used: as they are "
            f"read {max(brightest) // 256 + 1} of 256 grey levels are left; scale them to 65,535"
        )
    if size and sides:
        height, width = (max(lengths) for lengths in zip(*sides, strict=True))
        if _ENLARGED * height < size[0] and _ENLARGED * width < size[1]:
            found["small"] = (
                f"images of up to {height}x{width} are enlarged to {size[0]}x{size[1]}: set "
                f"image_size, and a patch_size that divides it, if they need not be"
            )
    return list(found.values())


def _of_one(image: Image.Image, name: str, channels: int) -> Iterator[tuple[str, str]]:
    count = pages(image) if image.format == "TIFF" else 1
    if count > 1 and channels in (1, 3):
        way = ""
        if len(image.getbands()) == 1:
            what = "save it as a colour image" if count == 3 else f"set in_channels={count}"
            way = f": {what} for all of them"
        yield "pages", f"{name} has {count} pages, of which the first is read{way}"
    alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if channels == 4 and count == 1 and not alpha:
        yield "alpha", f"{name} has no fourth channel: its alpha is the same everywhere"
