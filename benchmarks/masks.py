"""How fast masks are drawn: ratios against samplers that take image by image, in the same run.

    python benchmarks/masks.py [--grid 14]

Images a second of one CPU core, and of the GPU where there is one, by the images of one call. The
plain samplers do in Python what docs/fidelity.md and the samplers' docstrings say.
"""

import argparse
import math
import random
import time
from collections.abc import Callable

import torch

from flexpredict.model.masking import EvenMasks, Grid, MaskSampler, PaperMasks, RandomMasks

CALLS = {"cpu": (64, 256, 1024), "cuda": (1024, 4096)}
SECONDS = 0.3  # for one measurement, of which the best of five counts
SCALE, ASPECT, CONTEXT_SCALE = (0.15, 0.2), (0.75, 1.5), (0.85, 1.0)


def block(top: int, left: int, height: int, width: int, columns: int) -> list[int]:
    return [
        row * columns + column
        for row in range(top, top + height)
        for column in range(left, left + width)
    ]


def plain_paper(sampler: PaperMasks, count: int) -> None:
    """One block size for all images, offsets without the last, and contexts cut to the shortest."""
    rows, columns = sampler.grid
    height, width = sampler.block_size(random.random(), SCALE, ASPECT)
    tall, wide = sampler.block_size(random.random(), CONTEXT_SCALE, (1.0, 1.0))
    contexts, targets = [], []
    for _ in range(count):
        kept: list[int] = []
        while len(kept) <= sampler.min_context:
            blocks = [
                block(
                    random.randrange(rows - height),
                    random.randrange(columns - width),
                    height,
                    width,
                    columns,
                )
                for _ in range(4)
            ]
            covered = set().union(*blocks)
            top, left = random.randrange(rows - tall), random.randrange(columns - wide)
            kept = [p for p in block(top, left, tall, wide, columns) if p not in covered]
        contexts.append(kept)
        targets.append(blocks)
    shortest = min(map(len, contexts))
    torch.tensor([kept[:shortest] for kept in contexts])
    torch.tensor(targets)


def plain_even(sampler: EvenMasks, count: int) -> None:
    """Blocks with sizes of their own and all offsets; a fixed number of their patches at random."""
    rows, columns = sampler.grid

    def side(length: float, size: int) -> int:
        return min(max(round(length), 1), size)

    def placed(height: int, width: int) -> list[int]:
        top, left = random.randrange(rows - height + 1), random.randrange(columns - width + 1)
        return block(top, left, height, width, columns)

    def target() -> list[int]:
        area = rows * columns * random.uniform(*SCALE)
        height = side(math.sqrt(area * random.uniform(*ASPECT)), rows)
        return placed(height, side(area / height, columns))

    contexts, targets = [], []
    while len(contexts) < count:
        blocks = [target() for _ in range(4)]
        covered = set().union(*blocks)
        scale = math.sqrt(random.uniform(*CONTEXT_SCALE))
        around = placed(side(scale * rows, rows), side(scale * columns, columns))
        kept = [place for place in around if place not in covered]
        if len(kept) >= sampler.context and min(map(len, blocks)) >= sampler.targets:
            contexts.append(sorted(random.sample(kept, sampler.context)))
            targets.append([sorted(random.sample(places, sampler.targets)) for places in blocks])
    torch.tensor(contexts)
    torch.tensor(targets)


def plain_random(sampler: RandomMasks, count: int) -> None:
    """A shuffled list of places, cut in two."""
    contexts, targets = [], []
    for _ in range(count):
        order = random.sample(range(math.prod(sampler.grid)), math.prod(sampler.grid))
        contexts.append(sorted(order[: sampler.context]))
        targets.append([sorted(order[sampler.context :])])
    torch.tensor(contexts)
    torch.tensor(targets)


def ours(sampler: MaskSampler, count: int, device: str) -> Callable[[], None]:
    generator = torch.Generator(device).manual_seed(0)

    def work() -> None:
        sampler.sample(count, generator)

    return work


def rate(work: Callable[[], None], count: int, device: str) -> float:
    """Images a second, when calls follow each other and the device has finished the last."""

    def timed(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    timed(3)
    calls = math.ceil(SECONDS / timed(1))
    return count * calls / min(timed(calls) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--grid", type=int, default=14)
    grid: Grid = (parser.parse_args().grid,) * 2
    torch.set_num_threads(1)
    even, paper, mae = EvenMasks(grid), PaperMasks(grid), RandomMasks(grid)
    plain: list[tuple[str, MaskSampler, Callable[[], None]]] = [
        ("even", even, lambda: plain_even(even, 64)),
        ("paper", paper, lambda: plain_paper(paper, 64)),
        ("random", mae, lambda: plain_random(mae, 64)),
    ]
    for name, sampler, slow_work in plain:
        slow = rate(slow_work, 64, "cpu")
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            for count in CALLS[device]:
                fast = rate(ours(sampler, count, device), count, device)
                print(
                    f"{name}, {device}, calls of {count}: {fast:,.0f} against {slow:,.0f} images "
                    f"a second, {fast / slow:.0f} x"
                )


if __name__ == "__main__":
    main()
