"""Video segmentation by label propagation: labels follow the features from frame to frame.

Every patch of a frame takes its label from the patches most like it in the first frame and in a few
previous ones, within a window around its place (DINO's protocol).
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flexpredict.engine.precision import fast_products

Grid = tuple[int, int]


@torch.inference_mode()
def propagate(
    frames: Iterable[Tensor],
    first_labels: Tensor,
    *,
    radius: int = 12,
    neighbours: int = 5,
    previous: int = 7,
    temperature: float = 0.1,
    tile: int | None = None,
) -> Iterator[Tensor]:
    """Soft labels of every frame after the first, (classes, h, w) each.

    frames: patch features of each frame, (D, h, w), the first one included; read one at a time.
    first_labels: labels of the first frame, (classes, h, w), one-hot, background included.
    radius: of the window, in patches, along each axis.
    neighbours: how many patches of all context frames together a patch listens to.
    previous: how many frames before it, besides the first, are context.
    tile: patches along a side that are worked on together. It bounds the memory, which does not
        depend on the length of the video. None: small on a CPU, where less work is what counts,
        and large on a GPU, where few steps are.
    """
    stream = iter(frames)
    first = _normalised(next(stream))
    height, width, _ = first.shape
    # The first frame, then the latest ones in turn.
    context = first.new_empty(1 + previous, *first.shape)
    labels = first_labels.new_empty(1 + previous, *first_labels.shape)
    context[0], labels[0] = first, first_labels
    tile = tile or (64 if first.is_cuda else 10)
    tiles = _tiles((height, width), radius, tile, first)
    for number, frame in enumerate(stream):
        known = min(1 + previous, 1 + number)
        features, found = _normalised(frame), torch.empty_like(first_labels)
        for part in tiles:
            found[:, part.rows, part.columns] = _labels_of(
                features[part.rows, part.columns],
                context[:known, part.near_rows, part.near_columns],
                labels[:known, :, part.near_rows, part.near_columns],
                part.window,
                neighbours=neighbours,
                temperature=temperature,
            )
        if previous:
            place = 1 + number % previous
            context[place], labels[place] = features, found
        yield found


def _normalised(frame: Tensor) -> Tensor:
    """(D, h, w) -> (h, w, D), each patch of length 1."""
    return F.normalize(frame, dim=0).permute(1, 2, 0).contiguous()


@dataclass(frozen=True, slots=True)
class _Tile:
    """A part of the grid, and all of it that lies in the window of some patch of the part."""

    rows: slice
    columns: slice
    near_rows: slice
    near_columns: slice
    window: Tensor  # (R · W, r · w): 0 inside a patch's window, −∞ outside


def _tiles(grid: Grid, radius: int, size: int, like: Tensor) -> list[_Tile]:
    rows, columns = (_parts(side, size) for side in grid)
    tiles = []
    for row in rows:
        for column in columns:
            near_row, near_column = (
                slice(max(0, part.start - radius), min(side, part.stop + radius))
                for part, side in zip((row, column), grid, strict=True)
            )
            far_row, far_column = (
                (_range(other, like)[:, None] - _range(part, like)).abs() > radius
                for part, other in ((row, near_row), (column, near_column))
            )  # (R, r) and (W, w)
            far = far_row[:, None, :, None] | far_column[None, :, None, :]  # (R, W, r, w)
            window = like.new_zeros(far.shape).masked_fill_(far, -torch.inf)
            window = window.flatten(2).flatten(0, 1)
            tiles.append(_Tile(row, column, near_row, near_column, window))
    return tiles


def _parts(side: int, size: int) -> list[slice]:
    """A side in equal parts of at most `size`."""
    count = -(-side // size)
    edges = [round(side * part / count) for part in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _range(part: slice, like: Tensor) -> Tensor:
    return torch.arange(part.start, part.stop, device=like.device)


def _labels_of(
    features: Tensor,  # (r, w, D)
    context: Tensor,  # (frames, R, W, D)
    labels: Tensor,  # (frames, classes, R, W)
    window: Tensor,
    *,
    neighbours: int,
    temperature: float,
) -> Tensor:
    """(classes, r, w)"""
    frames, _, columns, _ = context.shape
    here, there = features.flatten(0, 1), context.flatten(1, 2)  # (n, D), (frames, R · W, D)
    # A GPU searches with rounded products, and looks more closely at more candidates than needed.
    wanted = neighbours * (3 if here.is_cuda else 1)
    with fast_products(here.device):
        likeness = torch.baddbmm(
            window.expand(frames, -1, -1), there, here.T.expand(frames, -1, -1)
        )  # (frames, R · W, n)
    # The nearest patches lie in the lines whose best patches are nearest: a small search twice
    # instead of a large one.
    lines = likeness.view(-1, columns, len(here))
    _, line = lines.amax(1).topk(min(wanted, len(lines)), dim=0)  # (k, n)
    some = lines.gather(0, line[:, None].expand(-1, columns, -1)).flatten(0, 1)  # (k · W, n)
    best, place = some.topk(min(wanted, len(some)), dim=0)
    patch = line.gather(0, place // columns) * columns + place % columns  # (wanted, n)
    if wanted > neighbours:
        outside = best == -torch.inf
        del likeness, lines, some
        best = torch.einsum("knd,nd->kn", there.flatten(0, 1)[patch], here)
        best, order = best.masked_fill(outside, -torch.inf).topk(min(neighbours, len(best)), dim=0)
        patch = patch.gather(0, order)
    weight = torch.softmax(best / temperature, dim=0)  # exp(cos / T), normalised
    known = labels.transpose(0, 1).flatten(1)  # (classes, frames · R · W)
    return (known[:, patch] * weight).sum(1).unflatten(1, features.shape[:2])


def to_pixels(labels: Tensor, patch_size: int, size: tuple[int, int]) -> Tensor:
    """The object of every pixel, (height, width): the largest of the upsampled channels."""
    stretched = stretch(
        F.interpolate(labels[None], scale_factor=patch_size, mode="bilinear", align_corners=False)[
            0
        ]
    )
    objects = stretched.argmax(0)
    return _nearest(objects, size)


def stretch(labels: Tensor) -> Tensor:
    """Each channel that is not empty stretched to [0, 1], (classes, H, W)."""
    low, high = labels.amin((1, 2), keepdim=True), labels.amax((1, 2), keepdim=True)
    return torch.where(high > 0, (labels - low) / (high - low).clamp(min=1e-12), labels)


def to_grid(mask: Tensor, grid: Grid) -> Tensor:
    """An indexed mask (height, width) as one-hot labels on the patch grid, (classes, h, w)."""
    small = _nearest(mask, grid)
    return F.one_hot(small, int(mask.max()) + 1).permute(2, 0, 1).float()


def _nearest(mask: Tensor, size: Grid) -> Tensor:
    """The value in the middle of each new pixel, as Pillow has it; torch's `nearest` is another."""
    return F.interpolate(mask[None, None].float(), size=size, mode="nearest-exact")[0, 0].long()
