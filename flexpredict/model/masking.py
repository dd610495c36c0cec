"""Which patches are context and which are targets.

Three samplers with one interface, `sampler.sample(count, generator) -> Masks`:

- `PaperMasks`: the distribution of the released I-JEPA and StoP code, flaws included
  (docs/fidelity.md says which). One call is one chunk: its images share the block size and the
  context length, and the context of each is cut to the shortest of the chunk.
- `EvenMasks`: the same idea without the flaws; context and target counts are fixed by the grid.
- `RandomMasks`: MAE's.

A setting that cannot give valid masks is refused when the sampler is made. A draw that leaves too
little context is thrown away and another takes its place: targets never leak into the context.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

Grid = tuple[int, int]
Range = tuple[float, float]

_TRIAL_IMAGES = 8192  # draws by which a sampler judges its settings when it is made
_TRIAL_PARTS = 64
_MOST_REFUSED_OF_A_SIZE = 0.90
_MOST_REFUSED = 0.30  # of draws; beyond this a grid is refused by `PaperMasks`
_KEPT_SHARE = 0.95  # of draws have at least as much context as `EvenMasks` takes


@dataclass(frozen=True, slots=True)
class Masks:
    """Patch indices, row-major, for B images: C context patches, K blocks of T target patches."""

    context: Tensor  # (B, C) int64
    targets: Tensor  # (B, K, T) int64

    def __len__(self) -> int:
        return self.context.shape[0]

    def __getitem__(self, images: slice) -> "Masks":
        return Masks(self.context[images], self.targets[images])

    def to(self, device: torch.device | str) -> "Masks":
        return Masks(
            self.context.to(device, non_blocking=True), self.targets.to(device, non_blocking=True)
        )


class MaskSampler(Protocol):
    """What the training loop needs of a sampler."""

    grid: Grid

    def sample(self, count: int, generator: torch.Generator) -> Masks:
        """Masks of one chunk of `count` images, on the generator's device."""
        ...


def _inside(start: Tensor, length: Tensor | int, size: int) -> Tensor:
    """1 for those of 0 … size − 1 that lie in [start, start + length), else 0: one more axis."""
    place = torch.arange(size, dtype=start.dtype, device=start.device)
    stop = start + length
    return ((place >= start[..., None]) & (place < stop[..., None])).float()


def _visible(rows: Tensor, columns: Tensor) -> Tensor:
    """Which patches lie in the context block and in no target block, (M, N).

    `rows` (M, K + 1, H) and `columns` (M, K + 1, W) say what is inside each; the context is last.
    """
    withheld = rows[:, :-1].mT @ columns[:, :-1]  # (M, H, W), how many blocks a patch lies in
    return (rows[:, -1:].mT * columns[:, -1:] > withheld).flatten(1)


def _first_valid(valid: Tensor, count: int) -> Tensor:
    """Indices of the first `count` valid draws, without asking the device for their number.

    Samplers draw so many more than they need, and refuse settings that fail so often, that running
    out has no practical probability; should it happen, the last valid draw is used again.
    """
    return torch.nonzero_static(valid, size=count, fill_value=0)[:, 0].cummax(dim=0).values


def _candidates_for(count: int, refused: float) -> int:
    """How many to draw so that `count` valid ones are among them, but for odds below 1e-14."""
    return 16 + math.ceil((count + 8 * math.sqrt(count * refused)) / (1 - refused) + 64 * refused)


def _sorted(keys: Tensor) -> Tensor:
    """Every row ascending: on a CPU by NumPy, 15 times as fast with its vector instructions."""
    if keys.device.type == "cpu":
        return torch.from_numpy(np.sort(keys.numpy(), axis=-1))
    return keys.sort(dim=-1).values


def _shuffled(places: Tensor, allowed: Tensor, patches: int, generator: torch.Generator) -> Tensor:
    """The allowed places of each row in random order, (..., N) int32; what follows them is void.

    They are the lowest bits of random numbers that are sorted. On a 14×14 grid 23 bits are random:
    two numbers are equal but for their place too rarely to matter.
    """
    low = 2 ** (patches - 1).bit_length() - 1
    key = torch.empty(allowed.shape, dtype=torch.int32, device=allowed.device)
    key.random_(generator=generator).bitwise_and_(~low).bitwise_or_(places)
    return _sorted(torch.add(key, allowed, alpha=-(2**31))) & low  # below zero if allowed


def _check_range(name: str, values: Range, highest: float = math.inf) -> None:
    low, high = values
    if not 0 < low <= high <= highest:
        limit = "" if highest == math.inf else f" <= {highest:g}"
        raise ValueError(f"{name} needs 0 < lowest <= highest{limit}, not {low:g} to {high:g}")


class Blocks(TypedDict, total=False):
    """How large the blocks are: scales are shares of the grid, aspects height over width."""

    target_blocks: int
    target_scale: Range
    target_aspect: Range
    context_scale: Range


class _BlockMasks:
    """What both samplers of blocks are told, and what neither can do without."""

    smallest_side = 2

    def __init__(
        self,
        grid: Grid,
        *,
        target_blocks: int = 4,
        target_scale: Range = (0.15, 0.2),
        target_aspect: Range = (0.75, 1.5),
        context_scale: Range = (0.85, 1.0),
    ) -> None:
        _check_range("target_scale", target_scale, 1.0)
        _check_range("context_scale", context_scale, 1.0)
        _check_range("target_aspect", target_aspect)
        if min(grid) < self.smallest_side:
            least = f"{self.smallest_side}x{self.smallest_side}"
            raise ValueError(
                f"block masks need a grid of at least {least} patches, not {_name(grid)}: choose a "
                f"smaller patch_size or a larger image_size"
            )
        self.grid = grid
        self.target_blocks = target_blocks
        self.target_scale = target_scale
        self.target_aspect = target_aspect
        self.context_scale = context_scale


class PaperMasks(_BlockMasks):
    """The masks of the released code: a distribution to reproduce, with all its skew (spec 1.4).

    One number sets both scale and aspect of the target blocks, so small blocks are wide and large
    ones tall; the last legal offset is never used; the context is cut in row-major order.
    """

    def __init__(self, grid: Grid, *, min_context: int = 10, **blocks: Unpack[Blocks]) -> None:
        super().__init__(grid, **blocks)
        self.min_context = min_context
        self._refused_by_size = self._trial()
        shares = torch.tensor([share for part in self._refused_by_size.values() for share in part])
        self.refused = float(shares.mean())
        if self.refused > _MOST_REFUSED or shares.max() > _MOST_REFUSED_OF_A_SIZE:
            raise ValueError(
                f"paper masks leave {min_context} or fewer context patches in {self.refused:.0%} "
                f"of draws on a {_name(grid)} grid: use smaller patches or masking=even"
            )

    def block_size(self, draw: float, scale: Range, aspect: Range) -> tuple[int, int]:
        """Height and width of a block: the same draw sets its scale and its aspect."""
        area = int(self.grid[0] * self.grid[1] * (scale[0] + draw * (scale[1] - scale[0])))
        ratio = aspect[0] + draw * (aspect[1] - aspect[0])
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        return min(height, self.grid[0] - 1), min(width, self.grid[1] - 1)

    def sample(self, count: int, generator: torch.Generator) -> Masks:
        draws = torch.rand(2, generator=generator, device=generator.device).tolist()
        target = self.block_size(draws[0], self.target_scale, self.target_aspect)
        context = self.block_size(draws[1], self.context_scale, (1.0, 1.0))
        top, left, visible = self._candidates(
            _candidates_for(count, self._refused_share(target)), target, context, generator
        )
        kept = visible.sum(dim=1)  # (M,)
        chosen = _first_valid(kept > self.min_context, count)
        # The cut to the chunk's shortest context keeps the first patches in row-major order.
        shortest = int(kept[chosen].min())
        place = torch.arange(visible.shape[1], dtype=torch.int32, device=visible.device)
        places = torch.add(place, ~visible[chosen], alpha=len(place))
        return Masks(
            context=_sorted(places)[:, :shortest].long(),
            targets=self._indices(top[chosen], left[chosen], target),
        )

    def _candidates(
        self,
        count: int,
        target: tuple[int, int],
        context: tuple[int, int],
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (rows, columns), device = self.grid, generator.device

        def offset(size: int, block: int, blocks: int) -> Tensor:  # the upper end is excluded
            return torch.randint(size - block, (count, blocks), generator=generator, device=device)

        top = offset(rows, target[0], self.target_blocks)
        left = offset(columns, target[1], self.target_blocks)
        context_top, context_left = offset(rows, context[0], 1), offset(columns, context[1], 1)
        down = [_inside(top, target[0], rows), _inside(context_top, context[0], rows)]
        across = [_inside(left, target[1], columns), _inside(context_left, context[1], columns)]
        return top, left, _visible(torch.cat(down, dim=1), torch.cat(across, dim=1))

    def _indices(self, top: Tensor, left: Tensor, block: tuple[int, int]) -> Tensor:
        row = top[..., None] + torch.arange(block[0], device=top.device)  # (B, K, h)
        column = left[..., None] + torch.arange(block[1], device=top.device)  # (B, K, w)
        return (row[..., :, None] * self.grid[1] + column[..., None, :]).flatten(2)

    def _refused_share(self, target: tuple[int, int]) -> float:
        """The share of draws that leave too little context with target blocks of this size."""
        known = self._refused_by_size.get(target)
        return max(known or itertools.chain.from_iterable(self._refused_by_size.values()))

    def _trial(self) -> dict[tuple[int, int], list[float]]:
        """Shares of refused draws by block size, from equal parts of the range of the draw."""
        generator = torch.Generator().manual_seed(0)
        each = _TRIAL_IMAGES // _TRIAL_PARTS
        shares: dict[tuple[int, int], list[float]] = {}
        for place in range(_TRIAL_PARTS):
            part = (place + 0.5) / _TRIAL_PARTS
            target = self.block_size(part, self.target_scale, self.target_aspect)
            context = self.block_size(part, self.context_scale, (1.0, 1.0))
            refused = 1.0
            if min(*target, *context) > 0:
                *_, visible = self._candidates(each, target, context, generator)
                refused = float((visible.sum(dim=1) <= self.min_context).double().mean())
            shares.setdefault(target, []).append(refused)
        return shares


class EvenMasks(_BlockMasks):
    """Blocks without the skew: inclusive offsets, scale and aspect drawn apart for every block.

    The number of targets per block, T, is the smallest block that can be drawn, and a larger block
    gives T of its patches at random; the number of context patches, C, is what 95 % of draws leave,
    and an image with more gives C of them at random. Both depend on the grid alone, never on the
    batch. All patches of a target block are withheld from the context.
    """

    smallest_side = 4

    def __init__(self, grid: Grid, **blocks: Unpack[Blocks]) -> None:
        super().__init__(grid, **blocks)
        patches, rows = grid[0] * grid[1], grid[0]
        # The largest block: its width is at most area / height + 1/2, or it is 1.
        area = patches * self.target_scale[1]
        self._largest = min(patches, max(rows, math.ceil(area + rows / 2)))
        generator = torch.Generator().manual_seed(0)
        _, size, visible = self._candidates(_TRIAL_IMAGES, generator)
        self.targets = int((size[0] * size[1]).min())
        self.context = int(
            visible.sum(dim=-1).sort().values[int(_TRIAL_IMAGES * (1 - _KEPT_SHARE))]
        )
        if self.context < max(2, grid[0] * grid[1] // 16):
            raise ValueError(
                f"even masks of {self.target_blocks} blocks leave only {self.context} of "
                f"{grid[0] * grid[1]} patches as context on a {_name(grid)} grid: use fewer or "
                f"smaller target blocks"
            )

    def sample(self, count: int, generator: torch.Generator) -> Masks:
        (rows, columns), device = self.grid, generator.device
        start, size, visible = self._candidates(_candidates_for(count, 1 - _KEPT_SHARE), generator)
        enough = visible.sum(dim=1, dtype=torch.int32) >= self.context
        chosen = _first_valid(enough & ((size[0] * size[1]).amin(dim=1) >= self.targets), count)
        (top, left), (height, width) = start[:, chosen, :, None], size[:, chosen, :, None]
        step = torch.arange(self._largest, dtype=size.dtype, device=device)  # along a block's rows
        inside = top * columns + left + step + (step / width).floor() * (columns - width)
        targets = _shuffled(inside.int(), step < height * width, rows * columns, generator)
        place = torch.arange(rows * columns, dtype=torch.int32, device=device)
        context = _shuffled(place, visible[chosen], rows * columns, generator)
        return Masks(
            context=_sorted(context[..., : self.context]).long(),
            targets=_sorted(targets[..., : self.targets]).long(),
        )

    def _candidates(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Where target blocks start and their sizes, (2, M, K), and what is context, (M, N).

        The first axis is rows and columns. Whole numbers stay float32, as every change of type is
        one more kernel.
        """
        (rows, columns), blocks = self.grid, self.target_blocks
        draws = torch.rand(count * (4 * blocks + 3), generator=generator, device=generator.device)
        target = draws[: 4 * count * blocks].view(4, count, blocks)
        context = draws[4 * count * blocks :].view(3, count, 1)

        def between(draw: Tensor, low: float, high: float) -> Tensor:
            return draw * (high - low) + low

        area = rows * columns * between(target[0], *self.target_scale)
        height = (area * between(target[1], *self.target_aspect)).sqrt()
        # The context block has the shape of the grid, so that it fits any rectangle.
        scale = between(context[0], *self.context_scale).sqrt()
        height = torch.cat([height, scale * rows], dim=1).round().clamp(1, rows)  # (M, K + 1)
        width = area / height[:, :-1]  # of the rounded height: the area stays near its draw
        width = torch.cat([width, scale * columns], dim=1).round().clamp(1, columns)

        room = torch.stack([rows + 1 - height, columns + 1 - width])  # both ends included
        start = (torch.cat([target[2:], context[1:]], dim=2) * room).floor()
        size = torch.stack([height, width])
        # One comparison for both axes: no block reaches past its own end of the longer one.
        inside = _inside(start, size, max(self.grid))
        visible = _visible(inside[0, :, :, :rows], inside[1, :, :, :columns])
        return start[..., :-1], size[..., :-1], visible


class RandomMasks:
    """MAE's masks: a random share of patches is hidden, and all of it is to be predicted."""

    def __init__(self, grid: Grid, *, mask_ratio: float = 0.75) -> None:
        patches = grid[0] * grid[1]
        self.grid = grid
        self.context = int(patches * (1 - mask_ratio))
        if not 0 < self.context < patches:
            raise ValueError(
                f"mask_ratio={mask_ratio:g} leaves {self.context} of {patches} patches visible on "
                f"a {_name(grid)} grid: at least one has to be visible and one hidden"
            )

    def sample(self, count: int, generator: torch.Generator) -> Masks:
        patches, device = self.grid[0] * self.grid[1], generator.device
        place = torch.arange(patches, dtype=torch.int32, device=device)
        every = torch.ones(count, patches, dtype=torch.bool, device=device)
        order = _shuffled(place, every, patches, generator)
        return Masks(
            context=_sorted(order[:, : self.context]).long(),
            targets=_sorted(order[:, self.context :]).long()[:, None],
        )


def _name(grid: Grid) -> str:
    return f"{grid[0]}x{grid[1]}"
