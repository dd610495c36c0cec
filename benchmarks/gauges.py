"""What gauges cost: the time of a gauging period with them over the time without, in turn.

    python benchmarks/gauges.py [--device cuda] [RECIPE …]

A period is `gauge_every` steps. With gauges means: masks are counted at every step, and at the end
all gauges are computed and a run of 100 gauged lines is judged.
"""

import argparse
import itertools
import statistics
import time

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
PAIRS, LINES = 6, 100


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
    gauges = Gauges(settings, MemorySource(pictures), chunks, objective, step)
    coverage = Coverage(sampler.grid)
    known = {"step": 1, "epoch": 0.0, "loss": 1.0, "norm_A": 1.0, "norm_gamma": 1.0}

    def period(steps: int, *, gauged: bool) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            planned = next(turns)
            step(images, [chunks.views(part, device) for part in planned], 0.99)
            if gauged:
                for part in planned:
                    coverage.add(part)
        if gauged:
            diagnose(settings, [known | gauges()] * LINES)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(3):  # compiles and captures
        period(3, gauged=True)
    start = time.perf_counter()
    gauges._measure()
    if device.type == "cuda":
        torch.cuda.synchronize()
    on_device = time.perf_counter() - start
    start = time.perf_counter()
    gauges()
    whole = time.perf_counter() - start
    ratios, alone = [], 0.0
    for _ in range(PAIRS):
        alone = period(settings.gauge_every, gauged=False)
        ratios.append(period(settings.gauge_every, gauged=True) / alone)
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    print(
        f"{recipe}, {device.type}: step {alone / settings.gauge_every * 1e3:.2f} ms, gauges every "
        f"{settings.gauge_every}: with over without {mean:.4f} ± {spread / PAIRS**0.5:.4f}; "
        f"all of them {whole * 1e3:.1f} ms, of which on the device {on_device * 1e3:.1f}",
        flush=True,
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
