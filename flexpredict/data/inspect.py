"""What a set of images holds: counts, sizes, formats, broken files, statistics of its channels.

Every image is decoded once. All sums are integers (a histogram of each channel), so that the
result is exact and does not depend on the number of processes.
"""

import functools
from collections import Counter
from dataclasses import dataclass, field
from math import ceil, isqrt
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from flexpredict.data.decode import BadImage, decode
from flexpredict.data.processes import in_processes, workers_for
from flexpredict.data.sources import Progress, Source
from flexpredict.data.sources.base import Pixels
from flexpredict.files import whole

_T = TypeVar("_T")
_R = TypeVar("_R")
Size = tuple[int, int]  # width, height

_BLOCK = 64  # images a process takes at a time
_FREQUENT = 5  # sizes that are named
_STARTS = {
    b"\xff\xd8": "jpeg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"\0\0\0\x0cjP": "jpeg2000",
    b"\xff\x4f\xff\x51": "jpeg2000",
    **{b"P%d" % number: "ppm" for number in range(1, 8)},
}

# 48 cells: even noise, which PNG cannot shrink, stays below 2 MB.
_COLUMNS, _ROWS, _CELL, _GAP = 8, 6, 112, 4
_PAPER, _INK = (255, 255, 255), (170, 170, 170)


@dataclass(frozen=True, slots=True)
class Broken:
    """An image that cannot be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found. `mean` and `std`, one of each channel, are on the scale 0 … 1."""

    images: int
    bytes: int
    labelled: bool
    classes: int
    fewest_per_class: int | None
    most_per_class: int | None
    formats: dict[str, int]  # images of each, the most frequent first; without the broken ones
    smallest: Size | None  # by their number of pixels
    median: Size | None
    largest: Size | None
    frequent: list[tuple[Size, int]]  # the most frequent sizes and how many images have them
    channels: int
    mean: list[float] | None
    std: list[float] | None
    broken: list[Broken]


@dataclass(slots=True)
class _Found:
    """What some of the images hold."""

    histogram: NDArray[np.int64]  # (channels, 256)
    images: int = 0
    bytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    sizes: Counter[Size] = field(default_factory=Counter)
    broken: dict[int, Broken] = field(default_factory=dict)

    def add(self, other: "_Found") -> None:
        self.histogram += other.histogram
        self.images += other.images
        self.bytes += other.bytes
        self.formats.update(other.formats)
        self.sizes.update(other.sizes)
        self.broken.update(other.broken)


def inspect(
    source: Source,
    *,
    channels: int = 3,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Decode every image once and tell what there is.

    `workers` is the number of processes; by default all cores where that pays.
    """
    if channels < 1:
        raise ValueError(f"images have at least one channel: channels={channels} is none")
    total = _nothing(channels)
    blocks = (range(n, min(n + _BLOCK, len(source))) for n in range(0, len(source), _BLOCK))
    task = functools.partial(_look_at, channels)
    for found in in_processes(task, source, blocks, workers_for(source, workers)):
        total.add(found)
        if progress is not None:
            progress(total.images, len(source))
    mean, std = _statistics(total.histogram)
    labels = source.labels
    # The classes that a set knows of, even those without an image.
    counts = None if labels is None else np.bincount(labels, minlength=len(source.classes))
    by_area = sorted(total.sizes, key=lambda size: (size[0] * size[1], size))
    return Inspection(
        images=len(source),
        bytes=total.bytes,
        labelled=counts is not None,
        classes=0 if counts is None else len(counts),
        fewest_per_class=None if counts is None else int(counts.min()),
        most_per_class=None if counts is None else int(counts.max()),
        formats=dict(sorted(total.formats.items(), key=lambda item: (-item[1], item[0]))),
        smallest=by_area[0] if by_area else None,
        median=_middle(by_area, total.sizes) if by_area else None,
        largest=by_area[-1] if by_area else None,
        frequent=sorted(total.sizes.items(), key=lambda item: (-item[1], item[0]))[:_FREQUENT],
        channels=channels,
        mean=mean,
        std=std,
        broken=[total.broken[index] for index in sorted(total.broken)],
    )


def kind_of(data: bytes | Pixels) -> str | None:
    """The format of an image by its first bytes, whatever the name of its file says."""
    if isinstance(data, np.ndarray):
        return "pixels"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    return next((kind for start, kind in _STARTS.items() if data.startswith(start)), None)


def _nothing(channels: int) -> _Found:
    return _Found(np.zeros((channels, 256), np.int64))


def _look_at(channels: int, source: Source, block: range) -> _Found:
    found = _nothing(channels)
    for index in block:
        found.images += 1
        try:
            data = source.read(index)
            found.bytes += data.nbytes if isinstance(data, np.ndarray) else len(data)
            pixels = decode(data, channels)
        except (BadImage, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            found.broken[index] = Broken(source.name(index), reason)
            continue
        found.formats[kind_of(data) or "other"] += 1
        found.sizes[pixels.shape[1], pixels.shape[0]] += 1
        for channel in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(pixels[:, :, channel]))
            found.histogram[channel] += plane.histogram()  # several times faster than numpy's
    return found


def _statistics(histogram: NDArray[np.int64]) -> tuple[list[float] | None, list[float] | None]:
    """Mean and standard deviation of each channel. Whole numbers of any length: nothing rounds."""
    mean, std = [], []
    for counts in histogram.tolist():
        pixels = sum(counts)
        if not pixels:
            return None, None
        first = sum(value * count for value, count in enumerate(counts))
        second = sum(value * value * count for value, count in enumerate(counts))
        mean.append(first / (255 * pixels))
        # The root of a ratio of whole numbers, taken where floats are still exact enough.
        std.append(((pixels * second - first * first) / (pixels * pixels)) ** 0.5 / 255)
    return mean, std


def _middle(by_area: list[Size], sizes: Counter[Size]) -> Size:
    """The size of the image in the middle; of two, the smaller one."""
    before, half = 0, (sizes.total() + 1) // 2
    for size in by_area:
        before += sizes[size]
        if before >= half:
            return size
    raise AssertionError("the sizes are those of no image")


def contact_sheet(source: Source, *, channels: int = 3) -> Image.Image:
    """Thumbnails of evenly spaced images, row by row; a cross where one is broken."""
    count = min(len(source), _COLUMNS * _ROWS)
    columns = isqrt(count * _COLUMNS // _ROWS - 1) + 1  # fewer images, about the same shape
    rows = ceil(count / columns)
    step = _CELL + _GAP
    sheet = Image.new("RGB", (columns * step + _GAP, rows * step + _GAP), _PAPER)
    for place in range(count):
        left, top = _GAP + place % columns * step, _GAP + place // columns * step
        try:
            thumbnail = _thumbnail(decode(source.read(place * len(source) // count), channels))
        except (BadImage, OSError):
            draw, last = ImageDraw.Draw(sheet), _CELL - 1
            draw.rectangle((left, top, left + last, top + last), outline=_INK)
            draw.line((left, top, left + last, top + last), fill=_INK)
            draw.line((left, top + last, left + last, top), fill=_INK)
            continue
        width, height = thumbnail.size
        sheet.paste(thumbnail, (left + (_CELL - width) // 2, top + (_CELL - height) // 2))
    return sheet


def write_sheet(sheet: Image.Image, path: Path) -> None:
    with whole(path) as file:
        sheet.save(file, format="PNG")


def _thumbnail(pixels: Pixels) -> Image.Image:
    # Of more than three channels the first three are shown as colours, of two the first as gray.
    shown = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    image = Image.fromarray(np.ascontiguousarray(shown)).convert("RGB")
    scale = _CELL / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
