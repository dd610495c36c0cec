"""The samplers against their definitions: the published `paper`, the symmetric `even`."""

import math
import random

import pytest
import torch

from flexpredict.model.masking import EvenMasks, Masks, MaskSampler, PaperMasks, RandomMasks

# Block sizes (height, width) and their probabilities, computed from the published procedure.
SIZES = {
    14: {(5, 6): 0.2653, (6, 6): 0.2185, (6, 5): 0.1257, (7, 5): 0.3642, (8, 5): 0.0263},
    16: {(5, 7): 0.0469, (6, 7): 0.2785, (6, 6): 0.0159, (7, 6): 0.2891, (8, 6): 0.2963,
         (9, 6): 0.0733},
}  # fmt: skip
ALL = [PaperMasks((14, 14)), EvenMasks((14, 14)), EvenMasks((5, 9)), RandomMasks((6, 7))]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _shown(masks: Masks, patches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which patches are context and which are targets, (B, N) each."""
    empty = torch.zeros(len(masks), patches, dtype=torch.bool)
    context = empty.scatter(1, masks.context, True)
    return context, empty.scatter(1, masks.targets.flatten(1), True)


def _box(places: torch.Tensor, columns: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of the smallest rectangle around the patches."""
    row, column = places // columns, places % columns
    top, left = int(row.min()), int(column.min())
    return top, left, int(row.max()) - top + 1, int(column.max()) - left + 1


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: f"{type(s).__name__}{s.grid}")
def test_masks__never_leak_and_never_repeat(sampler: MaskSampler) -> None:
    rows, columns = sampler.grid
    for seed in range(20):
        masks = sampler.sample(64, _generator(seed))
        assert len(masks) == 64
        context, targets = _shown(masks, rows * columns)
        assert not (context & targets).any()
        assert (context.sum(1) == masks.context.shape[1]).all()
        for places in (masks.context, *masks.targets.unbind(1)):
            assert places.dtype == torch.int64
            assert (places.diff(dim=1) > 0).all()


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: f"{type(s).__name__}{s.grid}")
def test_masks__are_a_function_of_the_generator(sampler: MaskSampler) -> None:
    first, again = sampler.sample(32, _generator(5)), sampler.sample(32, _generator(5))
    other = sampler.sample(32, _generator(6))
    assert torch.equal(first.context, again.context)
    assert torch.equal(first.targets, again.targets)
    assert first.targets.shape != other.targets.shape or not torch.equal(
        first.targets, other.targets
    )


def test_masks__slices() -> None:
    masks = EvenMasks((8, 8)).sample(10, _generator())
    assert torch.equal(masks[3:5].context, masks.context[3:5])
    assert torch.equal(masks[3:5].targets, masks.targets[3:5])


@pytest.mark.parametrize("grid", [14, 16])
def test_paper__block_sizes_follow_the_published_distribution(grid: int) -> None:
    """χ² over 20,000 batches at p > 1e-6."""
    sampler, generator, batches = PaperMasks((grid, grid)), _generator(), 20_000
    counts = dict.fromkeys(SIZES[grid], 0)
    for _ in range(batches):
        masks = sampler.sample(1, generator)
        counts[_box(masks.targets[0, 0], grid)[2:]] += 1
    chi2 = sum((counts[s] - batches * p) ** 2 / (batches * p) for s, p in SIZES[grid].items())
    # The 1 − 1e-6 quantile of χ² with 4 and 5 degrees of freedom.
    assert chi2 < {14: 33.4, 16: 35.9}[grid]


@pytest.mark.parametrize("grid", [14, 16])
def test_paper__equals_its_definition_in_loops(grid: int) -> None:
    """Targets are whole rectangles; the context is the corner block less the targets, cut short."""
    sampler = PaperMasks((grid, grid))
    corner = [row * grid + column for row in range(grid - 1) for column in range(grid - 1)]
    for seed in range(30):
        masks = sampler.sample(64, _generator(seed))
        left_over = []
        for blocks in masks.targets:
            covered = set()
            for places in blocks:
                top, left, height, width = _box(places, grid)
                rectangle = [
                    row * grid + column
                    for row in range(top, top + height)
                    for column in range(left, left + width)
                ]
                assert places.tolist() == rectangle
                covered |= set(rectangle)
            left_over.append([place for place in corner if place not in covered])
        shortest = min(len(places) for places in left_over)
        assert masks.context.tolist() == [places[:shortest] for places in left_over]


@pytest.mark.parametrize("grid", [14, 16])
def test_paper__last_row_and_column_are_never_used(grid: int) -> None:
    sampler, generator = PaperMasks((grid, grid)), _generator()
    for _ in range(100):
        masks = sampler.sample(64, generator)
        for places in (masks.context, masks.targets):
            assert int((places // grid).max()) < grid - 1
            assert int((places % grid).max()) < grid - 1


@pytest.mark.parametrize(
    ("grid", "chunk", "mean", "sd", "error"),
    [(14, 64, 53.0, 7.5, 0.15), (14, 128, 50.4, 7.4, 0.21), (16, 64, 72.4, 10.2, 0.20),
     (16, 128, 69.0, 10.0, 0.29)],
)  # fmt: skip
def test_paper__context_length_after_the_cut(
    grid: int, chunk: int, mean: float, sd: float, error: float
) -> None:
    sampler, generator, batches = PaperMasks((grid, grid)), _generator(), 1000
    lengths = torch.tensor(
        [sampler.sample(chunk, generator).context.shape[1] for _ in range(batches)]
    ).double()
    room = 5 * math.hypot(error, sd / math.sqrt(batches))
    assert abs(lengths.mean() - mean) < room
    assert abs(lengths.std() - sd) < 5 * math.hypot(sd / math.sqrt(2 * batches), error)


def test_paper__row_visibility() -> None:
    """Visibility falls from top to bottom (14×14, chunks of 64)."""
    published = [
        0.747, 0.600, 0.479, 0.374, 0.277, 0.222, 0.198, 0.197, 0.205, 0.205, 0.164, 0.091, 0.029, 0
    ]  # fmt: skip
    sampler, generator, batches = PaperMasks((14, 14)), _generator(), 600
    rows = torch.zeros(batches, 14)
    for batch in range(batches):
        masks = sampler.sample(64, generator)
        counts = torch.bincount(masks.context.flatten() // 14, minlength=14)
        rows[batch] = counts / (64 * 14)
    error = rows.std(0) / math.sqrt(batches)
    difference = (rows.mean(0) - torch.tensor(published)).abs()
    assert (difference < 5 * error + 0.0015).all()  # published to three digits, from 2,500 batches


@pytest.mark.parametrize(("grid", "share"), [(8, 0.007), (7, 0.17)])
def test_paper__refused_draws_of_small_grids(grid: int, share: float) -> None:
    assert PaperMasks((grid, grid)).refused == pytest.approx(share, abs=0.015)


def test_paper__small_grid_keeps_the_minimum_without_leaking() -> None:
    sampler, generator = PaperMasks((7, 7)), _generator()
    for _ in range(200):
        masks = sampler.sample(64, generator)
        assert masks.context.shape[1] > 10
        context, targets = _shown(masks, 49)
        assert not (context & targets).any()


@pytest.mark.parametrize("grid", [(7, 7), (6, 8), (8, 8)])
def test_paper__images_of_a_chunk_have_masks_of_their_own(grid: tuple[int, int]) -> None:
    """Where many draws are refused, enough are made: none has to serve twice."""
    sampler, generator = PaperMasks(grid), _generator()

    for _ in range(100):
        masks = sampler.sample(32, generator)
        unlike = len({tuple(image.flatten().tolist()) for image in masks.targets})
        assert unlike >= 31


def test_paper__hopeless_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in 4\d% of draws on a 6x6 grid"):
        PaperMasks((6, 6))
    with pytest.raises(ValueError, match="4x4 grid"):
        PaperMasks((4, 4))
    with pytest.raises(ValueError, match="at least 2x2"):
        PaperMasks((1, 9))


@pytest.mark.parametrize("grid", [(14, 14), (8, 8), (6, 10), (4, 4)])
def test_even__equals_its_mirror_images(grid: tuple[int, int]) -> None:
    rows, columns = grid
    sampler, generator, images = EvenMasks(grid), _generator(), 40_000
    masks = sampler.sample(images, generator)
    for share in (shown.double().mean(0) for shown in _shown(masks, rows * columns)):
        square = share.view(rows, columns)
        error = (2 * square * (1 - square) / images).sqrt()
        for mirrored in (square.flip(0), square.flip(1)):
            assert ((square - mirrored).abs() <= 5 * error + 1e-12).all()


def test_even__equals_its_definition_in_loops() -> None:
    """How often two patches are context, or targets of one block, together: 5 standard errors."""
    rows, columns, images, rng = 6, 7, 20_000, random.Random(0)
    sampler = EvenMasks((rows, columns))

    def side(length: float, size: int) -> int:
        return min(max(round(length), 1), size)

    def placed(height: int, width: int) -> list[int]:
        top, left = rng.randrange(rows - height + 1), rng.randrange(columns - width + 1)
        return [
            row * columns + column
            for row in range(top, top + height)
            for column in range(left, left + width)
        ]

    def target() -> list[int]:
        area = rows * columns * rng.uniform(0.15, 0.2)
        height = side(math.sqrt(area * rng.uniform(0.75, 1.5)), rows)
        return placed(height, side(area / height, columns))

    contexts, targets = [], []
    while len(contexts) < images:
        blocks = [target() for _ in range(4)]
        scale = math.sqrt(rng.uniform(0.85, 1.0))
        around = placed(side(scale * rows, rows), side(scale * columns, columns))
        kept = sorted(set(around).difference(*blocks))
        if len(kept) >= sampler.context and min(map(len, blocks)) >= sampler.targets:
            contexts.append(rng.sample(kept, sampler.context))
            targets.append([rng.sample(places, sampler.targets) for places in blocks])
    plain = Masks(torch.tensor(contexts), torch.tensor(targets))

    def together(places: torch.Tensor) -> torch.Tensor:
        shown = torch.zeros(images, rows * columns).scatter(1, places, 1.0)
        return (shown.T @ shown).double() / images

    masks = sampler.sample(images, _generator())
    for ours, theirs in (
        (masks.context, plain.context),
        *zip(masks.targets.unbind(1), plain.targets.unbind(1), strict=True),
    ):
        one, two = together(ours), together(theirs)
        error = ((one * (1 - one) + two * (1 - two)) / images).sqrt()
        assert ((one - two).abs() <= 5 * error + 1e-12).all()


def test_even__same_lengths_and_distribution_at_any_batch_size() -> None:
    """Coverage from 8,192 images drawn at once and one by one."""
    sampler, images = EvenMasks((8, 8)), 8192
    shares = []
    for chunk in (images, 64, 1):
        generator = _generator(chunk)
        parts = [sampler.sample(chunk, generator) for _ in range(images // chunk)]
        masks = Masks(torch.cat([m.context for m in parts]), torch.cat([m.targets for m in parts]))
        assert masks.context.shape == (images, sampler.context)
        assert masks.targets.shape == (images, 4, sampler.targets)
        shares.append([shown.double().mean(0) for shown in _shown(masks, 64)])
    for other in shares[1:]:
        for one, two in zip(shares[0], other, strict=True):
            error = ((one * (1 - one) + two * (1 - two)) / images).sqrt()
            assert ((one - two).abs() <= 5 * error + 1e-12).all()


def test_even__every_patch_is_used() -> None:
    masks = EvenMasks((14, 14)).sample(4096, _generator())
    for shown in _shown(masks, 196):
        assert (shown.sum(0) > 0).all()


def test_even__all_of_a_block_is_withheld() -> None:
    """Context lies outside the smallest rectangle around each block's targets."""
    masks = EvenMasks((16, 16)).sample(256, _generator())
    for context, blocks in zip(masks.context, masks.targets, strict=True):
        row, column = context // 16, context % 16
        for places in blocks:
            top, left, height, width = _box(places, 16)
            inside = (
                (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
            )
            assert not inside.any()


def test_even__impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4x4 patches, not 3x8"):
        EvenMasks((3, 8))
    with pytest.raises(ValueError, match="leave only"):
        EvenMasks((8, 8), target_blocks=8, target_scale=(0.5, 0.6))
    with pytest.raises(ValueError, match="target_scale needs 0 < lowest <= highest <= 1"):
        EvenMasks((8, 8), target_scale=(0.3, 0.2))


def test_random__hides_the_share_asked_for() -> None:
    masks = RandomMasks((14, 14), mask_ratio=0.75).sample(2000, _generator())
    assert masks.context.shape == (2000, 49)
    assert masks.targets.shape == (2000, 1, 147)
    context, targets = _shown(masks, 196)
    assert (context ^ targets).all()
    share = context.double().mean(0)
    assert ((share - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / 2000)).all()


def test_random__every_choice_is_equally_likely() -> None:
    """χ² over the 20 ways to show 3 of 6 patches, at p > 1e-6."""
    images = 20_000
    masks = RandomMasks((2, 3), mask_ratio=0.5).sample(images, _generator())
    _, counts = masks.context.unique(dim=0, return_counts=True)
    assert len(counts) == 20
    chi2 = ((counts - images / 20) ** 2 / (images / 20)).sum()
    assert chi2 < 63.7  # the 1 − 1e-6 quantile with 19 degrees of freedom


def test_random__nothing_visible_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves 0 of 16 patches visible"):
        RandomMasks((4, 4), mask_ratio=0.99)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_even__never_waits_for_the_device() -> None:
    sampler, generator = EvenMasks((14, 14)), torch.Generator("cuda").manual_seed(0)
    sampler.sample(64, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.sample(64, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
