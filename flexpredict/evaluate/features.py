"""Frozen features of a set of images, kept on disk by the content of what they are made from."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flexpredict.data.cores import usable_cores
from flexpredict.data.sources import MemorySource, Progress, Source
from flexpredict.data.sources.identity import contents
from flexpredict.data.transforms import Transform, UnusableImage, read_images
from flexpredict.engine.encoders import encoder_digest
from flexpredict.engine.precision import Precision, autocast_frozen, compute_dtype
from flexpredict.evaluate import kept
from flexpredict.files import cache_folder, write_text
from flexpredict.model.vit import Encoder, Resize, Size

Rows = NDArray[np.int64]
_BATCH = 256
_FEW_PARTS = 20
_PLAIN = Transform()
_FORMAT = 2  # raised when the same inputs would give other features
_PROBED = 4  # layers, of which probes keep features: the last is among them


@torch.inference_mode()
def extract(
    encoder: Encoder,
    source: Source,
    *,
    layers: int = 1,
    image_size: Size | None = None,
    transform: Transform = _PLAIN,
    resize: Resize = "recompute",
    precision: Precision = "auto",
    rows: Rows | None = None,
    batch_size: int = _BATCH,
    workers: int | None = None,
    unusable: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """(images, D · layers): token means after the final norm, layers side by side in depth order.

    image_size: other than the encoder's own, positions are made by `resize`; rectangles are fine.
    unusable: gets the images that cannot be used, and why, and their features are not numbers;
        without it the first one ends the work.
    """
    device, size = encoder.pos_embed.device, size_for(encoder, image_size)
    rows = np.arange(len(source)) if rows is None else rows
    out = torch.full((len(rows), encoder.dim * layers), torch.nan)
    dataset = _Batches(source, rows, size, transform, encoder.in_channels)
    parts = [slice(start, start + batch_size) for start in range(0, len(rows), batch_size)]
    if isinstance(source, MemorySource):
        workers = 0
    for part, read in zip(parts, prefetched(dataset, parts, workers), strict=True):
        for row, why in read.others.items():
            if unusable is None:
                raise UnusableImage(source.name(row), why)
            unusable[row] = why
        if read.places:
            with autocast_frozen(device, precision):
                found = encoder.features(read.images.to(device), layers=layers, resize=resize)
            out[read.places] = found.float().cpu()
        if progress is not None:
            progress(min(part.stop, len(rows)), len(rows))
    return out


def cached(
    encoder: Encoder,
    source: Source,
    *,
    layers: int = 1,
    image_size: Size | None = None,
    transform: Transform = _PLAIN,
    resize: Resize = "recompute",
    precision: Precision = "auto",
    unusable: dict[int, str] | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """As `extract`, from the cache where the same was computed before, of images all usable.

    The name of a cached file is a digest of weights, images, transform, layers and number format:
    features of other weights have another name, and are never used.
    """
    options: Any = {"layers": layers, "image_size": image_size, "transform": transform,
                    "resize": resize, "precision": precision, "unusable": unusable,
                    "progress": progress}  # fmt: skip
    try:
        images = content_digest(source)
    except OSError:  # a file that nobody can read
        if unusable is None:
            raise
        return extract(encoder, source, **options)
    key = {
        "format": _FORMAT,
        "weights": encoder_digest(encoder),
        "images": images,
        "transform": asdict(transform),
        "size": size_for(encoder, image_size),
        "layers": layers,
        "resize": resize,
        "computed in": str(compute_dtype(precision, encoder.pos_embed.device)),
    }
    for more in sorted({layers, max(layers, _PROBED)}):
        shape = (len(source), encoder.dim * more)
        found = kept.read(_name(key | {"layers": more}), shape, encoder.dim * layers)
        if found is not None:
            return found
    features = extract(encoder, source, **options)
    if not unusable:
        kept.write(_name(key), features.numpy())
    return features


def _name(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def size_for(encoder: Encoder, image_size: Size | None = None) -> tuple[int, int]:
    """Height and width, by default the encoder's own; refused where patches do not fit."""
    if image_size is None:
        return encoder.grid[0] * encoder.patch_size, encoder.grid[1] * encoder.patch_size
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    patch = encoder.patch_size
    if height < patch or width < patch or height % patch or width % patch:
        raise ValueError(
            f"image_size {height}x{width} does not divide into the encoder's patches of "
            f"{encoder.patch_size}: choose a multiple of {encoder.patch_size}"
        )
    return height, width


def content_digest(source: Source) -> str:
    """A digest of every image. Files that look untouched are not read twice."""
    stamp = source.stamp()
    memo = None if stamp is None else cache_folder() / "digests" / stamp
    if memo is not None and memo.is_file():
        return memo.read_text("utf-8")
    digest = contents(source)
    if memo is not None:
        with suppress(OSError):  # it only saves time
            memo.parent.mkdir(parents=True, exist_ok=True)
            write_text(memo, digest)
    return digest


class _Read(NamedTuple):
    """A batch: images, their places among the rows, and the rows of others with what is wrong."""

    images: Tensor
    places: list[int]
    others: dict[int, str]


class _Batches(Dataset[_Read | str]):
    """Batches of decoded images, made by worker processes; a string says why there is none."""

    def __init__(
        self,
        source: Source,
        rows: Rows,
        size: tuple[int, int],
        transform: Transform,
        channels: int,
    ) -> None:
        self.source, self.rows = source, rows
        self.size, self.transform, self.channels = size, transform, channels

    def __getitem__(self, part: slice) -> _Read | str:
        places = list(range(len(self.rows))[part])
        try:
            try:
                return _Read(self._images(places), places, {})
            except UnusableImage:
                return self._usable(places)
        except ValueError as error:  # a worker cannot raise in one line
            return str(error)

    def _images(self, places: list[int]) -> Tensor:
        rows = self.rows[places].tolist()
        return read_images(self.source, rows, self.size, self.transform, self.channels)

    def _usable(self, places: list[int]) -> _Read:
        """One by one."""
        found = _Read(torch.empty(0), [], {})
        images = []
        for place in places:
            try:
                images.append(self._images([place]))
            except UnusableImage as error:
                found.others[int(self.rows[place])] = error.why
            else:
                found.places.append(place)
        return found._replace(images=torch.cat(images)) if images else found


def prefetched(
    dataset: Dataset[Any], parts: Sequence[Any], workers: int | None = None
) -> Iterator[Any]:
    """The parts of a data set in turn, prepared ahead by processes where that is worth it.

    A part that is a string says why there is none.
    """
    if workers is None:  # processes cost a second to start
        workers = 0 if len(parts) < _FEW_PARTS else min(8, usable_cores())
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=parts,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    for answer in loader:
        if isinstance(answer, str):
            raise ValueError(answer)
        yield answer
