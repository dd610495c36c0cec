"""What gauges cost: the time of a step with them over the time without, in the same run.

    python benchmarks/gauges.py [--device cuda] [RECIPE …]

With gauges means: masks are counted at every step, and at every `gauge_every`-th all gauges are
computed and a run of 100 gauged lines is judged.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.data.sources import MemorySource
from flexpredict.engine.distributed import pick_device
from flexpredict.health.diagnosis import diagnose
from flexpredict.train.chunks import Chunks
from flexpredict.train.gauges import Coverage, Gauges
from flexpredict.train.step import step_of

RECIPES = {"cpu": ["demo"], "cuda": ["demo", "small/stop-vit-t8-64", "paper/stop-vit-b16"]}
SECONDS, LEAST = 4.0, 12  # of one measurement, and how many are made at least
LINES = 100


def clock(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds, the device waited for; the first three do not count."""
    spent: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(spent) < LEAST or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[3:])


def measure(recipe: str, device: torch.device) -> None:
    settings = settings_from({}, recipe=recipe)
    objective = build.build_objective(settings)
    sampler = build.build_sampler(settings, objective.encoder.grid)
    chunks = Chunks(sampler, settings.seed, settings.chunk_size, settings.accumulate)
    step, count = step_of(settings, objective, device), settings.batch_size
    shape = (2 * count, *build.image_size(settings), 3)
    pictures = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    images = torch.from_numpy(pictures[:count]).permute(0, 3, 1, 2).contiguous().to(device)
    plans = [chunks(0, place * count, count) for place in range(8)]
    turns = itertools.cycle(plans)

    def train() -> None:
        views = [chunks.views(part, device) for part in next(turns)]
        step(images, views, 0.99)

    gauges = Gauges(settings, MemorySource(pictures), chunks, objective, step)
    coverage = Coverage(sampler.grid)
    alone = clock(train, device)
    counting = clock(lambda: [coverage.add(part) for part in plans[0]], device)
    gauging = clock(gauges, device)
    line = {"step": 1, "epoch": 0.0, "loss": 1.0, "norm_A": 1.0, "norm_gamma": 1.0} | gauges()
    judging = clock(lambda: diagnose(settings, [line] * LINES), device)
    cost = counting + (gauging + judging) / settings.gauge_every
    print(
        f"{recipe}, {device.type}: step {alone * 1e3:.2f} ms, counting masks {counting * 1e3:.3f}, "
        f"gauges {gauging * 1e3:.2f} every {settings.gauge_every} steps, judging "
        f"{judging * 1e3:.2f}: with over without {1 + cost / alone:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--device", default=None)
    given = parser.parse_args()
    device = pick_device(given.device)
    for recipe in given.recipes or RECIPES[device.type]:
        measure(recipe, device)


if __name__ == "__main__":
    main()
