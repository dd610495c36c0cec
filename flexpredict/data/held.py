"""Sets that are decoded once and kept: in the memory of this machine, or of the device that trains.

In memory they are a source as any other, only that nothing is left to decode. On a device whole
batches are cropped there too. The crops are the same boxes of the same images in every case.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_start_method
from typing import Literal, NamedTuple
from warnings import catch_warnings, filterwarnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.data.cores import free_memory, usable_cores
from flexpredict.data.decode import BadImage, decode
from flexpredict.data.resample import crop_batch
from flexpredict.data.sources.base import Pixels, Progress, Source
from flexpredict.data.sources.files import PathSource
from flexpredict.data.sources.memory import MemorySource
from flexpredict.data.sources.packed import PackedSource
from flexpredict.data.sources.shards import ShardSource

Place = Literal["none", "ram", "device"]
_FOR_THREADS = (PathSource, PackedSource, ShardSource, MemorySource)
_BLOCK = 64  # images
_LOOKED_AT = 100  # images by which the size of a set is judged
_SHARE_OF_RAM, _SHARE_OF_DEVICE = 0.4, 0.3  # of what is free
_AT_ONCE = 1 << 27  # values of a batch on the device at a time


class TooLarge(ValueError):
    """A set takes more memory, decoded, than was allowed."""


class _Block(NamedTuple):
    pixels: NDArray[np.uint8]  # of its images, end to end
    offsets: NDArray[np.int64]  # where each begins, and where the last ends
    sizes: NDArray[np.int64]  # height and width of each, 0 and 0 where it cannot be used


class Held:
    """A source whose images are decoded and in memory."""

    def __init__(
        self,
        source: Source,
        channels: int = 3,
        *,
        limit: float = math.inf,
        progress: Progress | None = None,
    ) -> None:
        """limit: bytes; more raise `TooLarge`."""
        self.labels, self.classes = source.labels, source.classes
        self.channels = channels
        self.rejected: dict[int, str] = {}
        self._source = source
        self._blocks: list[_Block] = []
        starts, taken = range(0, len(source), _BLOCK), 0
        # Decoders let go of Python's lock. Threads that each silence warnings a while would leave
        # them silent for good, if nobody did so around them.
        with catch_warnings(), ThreadPoolExecutor(usable_cores()) as pool:
            for block, rejected in pool.map(self._decode, starts):
                self._blocks.append(block)
                self.rejected |= rejected
                taken += block.pixels.nbytes
                if taken > limit:
                    pool.shutdown(cancel_futures=True)
                    raise TooLarge(
                        f"the images take more than {limit / 2**30:.1f} GiB decoded: set hold=none"
                    )
                if progress is not None:
                    progress(min(len(self._blocks) * _BLOCK, len(source)), len(source))

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> Pixels:
        if (reason := self.rejected.get(index)) is not None:
            raise BadImage(reason)
        block, row = self._blocks[index // _BLOCK], index % _BLOCK
        pixels = block.pixels[block.offsets[row] : block.offsets[row + 1]]
        return pixels.reshape(*block.sizes[row], self.channels)

    def name(self, index: int) -> str:
        return self._source.name(index)

    def stamp(self) -> str | None:
        return self._source.stamp()

    def to(self, device: torch.device) -> "OnDevice":
        """Moves the images to a device; this source is empty afterwards."""
        sizes = np.concatenate([block.sizes for block in self._blocks])
        pixels = torch.empty(
            int(sizes.prod(1).sum()) * self.channels, dtype=torch.uint8, device=device
        )
        at = 0
        for place, block in enumerate(self._blocks):
            pixels[at : at + len(block.pixels)] = torch.from_numpy(block.pixels)
            at += len(block.pixels)
            self._blocks[place] = block._replace(pixels=np.empty(0, np.uint8))
        return OnDevice(pixels, sizes, self.channels, self.rejected)

    def _decode(self, start: int) -> tuple[_Block, dict[int, str]]:
        images: list[Pixels] = []
        rejected = {}
        for index in range(start, min(start + _BLOCK, len(self._source))):
            try:
                images.append(decode(self._source.read(index), self.channels))
            except (BadImage, OSError) as error:
                rejected[index] = str(error)
                images.append(np.empty((0, 0, self.channels), np.uint8))
        offsets = np.cumsum([0, *(image.size for image in images)])
        sizes = np.array([image.shape[:2] for image in images], dtype=np.int64)
        pixels = np.concatenate([image.reshape(-1) for image in images])
        return _Block(pixels, offsets, sizes), rejected


class OnDevice:
    """Decoded images in the memory of a device, end to end."""

    def __init__(
        self,
        pixels: Tensor,
        sizes: NDArray[np.int64],
        channels: int,
        rejected: dict[int, str],
    ) -> None:
        self.sizes, self.channels, self.rejected = sizes, channels, rejected
        self.device = pixels.device
        self._pixels = pixels.view(-1, channels)
        starts = np.cumsum(sizes.prod(1)) - sizes.prod(1)  # in pixels
        table = torch.from_numpy(np.column_stack([starts, sizes]))
        self._table = table.to(self.device)
        self._alike = bool((sizes == sizes[0]).all())
        self._crop = crop_batch
        if self._alike and self.device.type == "cuda":  # one shape for good: worth compiling
            filterwarnings("ignore", "TensorFloat32 tensor cores")  # too coarse for grey levels
            torch._dynamo.config.suppress_errors = True  # without a compiler, as it stands
            self._crop = torch.compile(crop_batch, dynamic=False)

    def crop(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Boxes of images at one size: (b, 5), index, left, top, right, bottom -> (b, c, *size)."""
        sizes = self.sizes[boxes[:, 0].numpy()]
        order = torch.arange(len(boxes))
        if not self._alike:  # images of like size side by side: little room is left between them
            order = torch.from_numpy(np.argsort(-sizes.prod(1), kind="stable"))
            sizes, boxes = sizes[order.numpy()], boxes[order]
        plan = boxes.to(self.device, non_blocking=True)
        parts, at = [], 0
        while at < len(boxes):
            room = np.maximum.accumulate(sizes[at:], axis=0)  # for the first, the first two, …
            values = np.maximum(room, size).prod(1) * np.arange(1, len(room) + 1) * self.channels
            count = max(1, int(np.searchsorted(values, _AT_ONCE, side="right")))
            height, width = (int(side) for side in room[count - 1])
            part = plan[at : at + count]
            images = self._side_by_side(part[:, 0], height, width)
            parts.append(self._crop(images, part[:, 1:], size))
            at += count
        out = torch.cat(parts) if len(parts) > 1 else parts[0]
        return out if self._alike else out[order.argsort().to(self.device, non_blocking=True)]

    def _side_by_side(self, indices: Tensor, height: int, width: int) -> Tensor:
        """Images at the upper left of as much room each, (b, H, W, c)."""
        if self._alike:
            return self._pixels.view(-1, height, width, self.channels)[indices]
        start, sizes = self._table[indices].split([1, 2], dim=1)
        row = torch.arange(height, device=self.device).minimum(sizes[:, :1] - 1)  # (b, H)
        column = torch.arange(width, device=self.device).minimum(sizes[:, 1:] - 1)  # (b, W)
        place = start[:, None] + row[:, :, None] * sizes[:, 1:, None] + column[:, None, :]
        return self._pixels[place]


def room_for(place: Place, device: torch.device, *, share: int = 1) -> float:
    """Bytes a set may take there, when `share` processes of this machine each hold it."""
    room = _SHARE_OF_RAM * free_memory() / share  # it passes through there on its way to a device
    if place == "device":
        room = min(room, _SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0])
    return room


def place_for(
    source: Source, channels: int, device: torch.device, *, share: int = 1, workers: int = 0
) -> Place:
    """Where a set fits, decoded."""
    if not isinstance(source, _FOR_THREADS):
        return "none"  # somebody else's: who knows whether several threads may read it
    need = _decoded_bytes(source, channels)
    if device.type == "cuda" and need <= room_for("device", device, share=share):
        return "device"
    if workers and get_start_method() != "fork":
        return "none"  # every worker would get a copy
    return "ram" if need <= room_for("ram", device, share=share) else "none"


def _decoded_bytes(source: Source, channels: int) -> float:
    """About: from images spread evenly over the set."""
    rows = np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT)).astype(int)
    found = []
    for row in rows.tolist():
        try:
            found.append(decode(source.read(row), channels).size)
        except (BadImage, OSError):
            continue
    return float(np.mean(found)) * len(source) if found else float("inf")
