"""What gauges cost, as a share of the time of the steps between them.

    python benchmarks/gauges.py [--device cuda] [RECIPE …]

Ten steps are timed plain, and with all gauges begun before the first, and read and a run of 100
gauged lines judged after the last, in turn, many times: the difference is what a gauging costs. The
counting of masks, at every step, is timed alone.
"""

import argparse
import itertools
import time

import numpy as np
import torch

from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.data.sources import MemorySource
from flexpredict.engine.distributed import pick_device
from flexpredict.health.diagnosis import diagnose
from flexpredict.train.chunks import Chunks
from flexpredict.train.gauges import Coverage, Gauges, period
from flexpredict.train.step import step_of

RECIPES = {"cpu": ["demo"], "cuda": ["demo", "small/stop-vit-t8-64", "paper/stop-vit-b16"]}
ROUNDS, STEPS, LINES, LONG = 30, 10, 100, 100_000


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

    def timed(*, gauged: bool) -> float:
        start = time.perf_counter()
        pending = gauges.begin() if gauged else None
        for _ in range(STEPS):
            step(images, [chunks.views(part, device) for part in next(turns)], 0.99)
        if pending is not None:  # as training does with the next line
            diagnose(settings, [known | pending.result()] * LINES)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    def counted() -> float:
        """One step's masks, alone: too little to be seen between steps."""
        start = time.perf_counter()
        for part in next(turns):
            coverage.add(part)
        return (time.perf_counter() - start) * 1e3

    for _ in range(3):  # compiles and captures
        timed(gauged=True)
    rounds = np.array([[timed(gauged=False), timed(gauged=True)] for _ in range(ROUNDS)])  # ms
    plain, every = rounds[:, 0].mean() / STEPS, period(settings, settings.steps or LONG)
    counting = np.array([counted() for _ in range(ROUNDS)])
    gauging = rounds[:, 1] - rounds[:, 0]
    ratios = 1 + (every * counting + gauging) / (every * plain)
    print(
        f"{recipe}, {device.type}: step {plain:.2f} ms, gauges every {every}: with over without "
        f"{ratios.mean():.4f} ± {ratios.std(ddof=1) / ROUNDS**0.5:.4f}; counting masks "
        f"{counting.mean():.3f} ms a step, gauging {gauging.mean():.1f} ms",
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
