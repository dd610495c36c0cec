"""Targets of half the resolution beside the full ones (Table 8; spec, analysis 6).

The paper does not say how: we reduce the target map on the full grid, keep the low-resolution cells
whose four children are all targets of one block, and reduce that block's predictions the same way.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from flexpredict.model.masking import Grid, Masks

Reduction = Literal["bilinear", "max"]


def reduce_map(tokens: Tensor, grid: Grid, reduction: Reduction) -> Tensor:
    """A token map at half the resolution, (..., N, D) -> (..., N / 4, D); an odd edge is left out.

    Halving by bilinear interpolation is the mean of each 2×2 cell.
    """
    rows, columns = grid[0] // 2, grid[1] // 2
    tokens = tokens.unflatten(-2, grid)[..., : 2 * rows, : 2 * columns, :]
    cells = tokens.unflatten(-3, (rows, 2)).unflatten(-2, (columns, 2))  # (..., r, 2, c, 2, D)
    reduced = cells.amax(dim=(-4, -2)) if reduction == "max" else cells.mean(dim=(-4, -2))
    return reduced.flatten(-3, -2)


def whole_cells(masks: Masks, grid: Grid) -> Tensor:
    """Cells whose four children are all targets of one block, (B, K, N / 4, 1)."""
    shape = (*masks.targets.shape[:2], grid[0] * grid[1])
    known = torch.zeros(shape, device=masks.targets.device).scatter(2, masks.targets, 1.0)
    return reduce_map(known[..., None], grid, "bilinear") == 1


def low_resolution_loss(
    predicted: Tensor,
    targets: Tensor,
    masks: Masks,
    grid: Grid,
    reduction: Reduction,
    distance: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Mean over images of each image's mean over its whole cells: (B, K, T, D), (B, N, D) -> ()."""
    batch, blocks, _, dim = predicted.shape
    place = masks.targets[..., None].expand(-1, -1, -1, dim)
    canvas = predicted.new_zeros(batch, blocks, grid[0] * grid[1], dim)
    canvas = canvas.scatter(2, place, predicted)
    whole = whole_cells(masks, grid)
    low_predicted = reduce_map(canvas, grid, reduction)
    low_targets = reduce_map(targets, grid, reduction)[:, None].expand_as(low_predicted)
    error = (distance(low_predicted, low_targets) * whole).sum(dim=(1, 2, 3))  # (B,)
    cells = whole.sum(dim=(1, 2, 3)).clamp(min=1)
    return torch.mean(error / (cells * dim))
