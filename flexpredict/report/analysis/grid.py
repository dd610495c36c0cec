"""Distances on a grid of patches."""

import torch
from torch import Tensor

from flexpredict.model.masking import Grid


def distances(grid: Grid) -> Tensor:
    """From every patch to every other, in patches, (N, N)."""
    place = _places(grid)
    return torch.cdist(place, place)


def neighbours(grid: Grid) -> Tensor:
    """Which patches touch which, corners included and themselves not, (N, N): 8 in the middle."""
    place = _places(grid)
    return torch.cdist(place, place, p=torch.inf) == 1


def _places(grid: Grid) -> Tensor:
    return torch.cartesian_prod(*(torch.arange(side, dtype=torch.float64) for side in grid))
