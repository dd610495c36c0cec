"""DAVIS videos with a mask for their frames, of 2016 (one object) or 2017 (several).

JPEGImages/480p/<sequence>/00000.jpg, Annotations/480p/<sequence>/00000.png, and in ImageSets the
sequences of the validation part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flexpredict.data.decode import BadImage, decode
from flexpredict.data.sources.base import Pixels
from flexpredict.data.sources.reading import folder_with, read_lines
from flexpredict.files import whole

VOID = 255  # neither object nor background; the semi-supervised task counts it as background


@dataclass(frozen=True, slots=True)
class Video:
    """A sequence: its frames in order and, where there is one, the mask of each."""

    name: str
    frames: list[Path]
    masks: list[Path | None]
    one_object: bool = False  # 2016: whatever is not zero is the object

    def frame(self, index: int) -> Pixels:
        """A frame, (height, width, 3)."""
        try:
            return decode(self.frames[index].read_bytes())
        except BadImage as error:
            raise ValueError(f"{self.frames[index]} cannot be read as an image: {error}") from None

    def mask(self, index: int) -> NDArray[np.uint8]:
        """The number of the object at each pixel, 0 for background, (height, width)."""
        path = self.masks[index]
        if path is None:
            raise ValueError(f"{self.name} has no mask for {self.frames[index].name}")
        try:
            with Image.open(path) as image:
                if image.mode in ("P", "L", "1"):
                    values = np.asarray(image).astype(np.uint8)
                elif self.one_object:  # a few masks of 2016 are in colour
                    values = np.asarray(image.convert("RGB")).max(axis=2)
                else:
                    raise ValueError(f"expected numbers of objects, found {image.mode} colours")
        except (OSError, ValueError, SyntaxError) as error:
            raise ValueError(f"{path} cannot be read as a mask: {error}") from None
        if self.one_object:
            return (values > 0).astype(np.uint8)
        values[values == VOID] = 0
        return values


def open_davis(
    root: Path, year: Literal["2016", "2017"], names: Sequence[str] | None = None
) -> list[Video]:
    """The validation videos below `root`, or those with the given names, in that order."""
    if year not in ("2016", "2017"):
        raise ValueError(f"there is no DAVIS {year}: choose 2016 or 2017")
    root = folder_with(root.expanduser(), "JPEGImages/480p", "DAVIS")
    names = _listed(root, year) if names is None else names
    if not names:
        raise ValueError(f"{root} has no videos: expected folders of frames in JPEGImages/480p")
    return [_video(root, name, year == "2016") for name in names]


def _listed(root: Path, year: str) -> list[str]:
    """Sequences of the validation part; without lists, all there are."""
    lists = root / "ImageSets"
    if not lists.is_dir():
        return sorted(path.name for path in (root / "JPEGImages/480p").iterdir() if path.is_dir())
    if year == "2016" and (pairs := lists / "480p" / "val.txt").is_file():
        # Lines of frame and mask, /JPEGImages/480p/blackswan/00000.jpg /Annotations/480p/…
        return list(dict.fromkeys(Path(line.split()[0]).parent.name for line in read_lines(pairs)))
    return [line.strip() for line in read_lines(lists / year / "val.txt")]


def _video(root: Path, name: str, one_object: bool) -> Video:
    frames = sorted((root / "JPEGImages/480p" / name).glob("*.jpg"))
    if not frames:
        raise ValueError(f"{root} has no frames of {name}: expected JPEGImages/480p/{name}/*.jpg")
    folder = root / "Annotations/480p" / name
    masks = [mask if (mask := folder / f"{f.stem}.png").is_file() else None for f in frames]
    if masks[0] is None:
        raise ValueError(
            f"{name} has no mask for its first frame: expected {folder / frames[0].stem}.png"
        )
    size = _size(frames[0])
    for path in (*frames, *masks):
        if path is not None and _size(path) != size:
            width, height = _size(path)
            raise ValueError(
                f"{path} is {width}×{height}: expected {size[0]}×{size[1]}, the size of "
                f"the first frame of {name}"
            )
    return Video(name, frames, masks, one_object)


def _size(path: Path) -> tuple[int, int]:
    """Width and height from the header alone."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None


def write_mask(path: Path, mask: NDArray[np.uint8]) -> None:
    """An indexed PNG of a mask (height, width) in the colours of DAVIS."""
    if mask.dtype != np.uint8 or mask.ndim != 2:
        raise ValueError(f"a mask is uint8 (height, width), not {mask.dtype} of shape {mask.shape}")
    image = Image.fromarray(mask)
    image.putpalette(palette().tobytes())
    with whole(path) as file:
        image.save(file, format="PNG")


def palette() -> NDArray[np.uint8]:
    """The colours of PASCAL VOC, (256, 3): the bits of an index dealt out to red, green, blue."""
    index = np.arange(256)[:, None] >> np.arange(3)  # (256, 3)
    colours = np.zeros((256, 3), dtype=np.uint8)
    for bit in range(3):  # three bits of eight for each colour, the lowest of them weighs most
        colours |= ((index >> 3 * bit & 1) << 7 - bit).astype(np.uint8)
    return colours
