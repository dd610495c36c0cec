"""Whether a set held on the GPU keeps a small model busy: a fed step against the same step alone.

    python benchmarks/feed.py tiny-imagenet-200.partA.npz:train [--model vit_tiny] [--batch 1024]

alone   one batch of synthetic images, masks and noise, made before the clock starts
fed     order, crops, masks and noise of every step drawn as in training, in turn with the other
"""

import argparse
import statistics
import time
from itertools import islice

import torch

from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.data import loader
from flexpredict.data.sources import open_source
from flexpredict.train.chunks import Chunks
from flexpredict.train.step import step_of

CUDA = torch.device("cuda")
STEPS, REPEATS = 60, 7


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--model", default="vit_tiny")
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=4)
    chosen = parser.parse_args()
    settings = settings_from(
        {
            "model": chosen.model, "patch_size": chosen.patch, "image_size": 64,
            "batch_size": chosen.batch, "steps": 100_000,
        }
    )  # fmt: skip
    objective = build.build_objective(settings)
    step = step_of(settings, objective, CUDA)

    sampler = build.build_sampler(settings, objective.encoder.grid)
    chunks = Chunks(sampler, settings.seed, settings.chunk_size)
    source = open_source(chosen.data)
    start = time.perf_counter()
    batches = build.build_batches(settings, source, beside=chunks)
    held = loader.hold(batches, "device", CUDA)
    print(f"{len(source):,} images decoded and held in {time.perf_counter() - start:.1f} s")
    stream = iter(loader.load(held, range(100_000), workers=chosen.workers))

    first = next(stream)
    images = torch.randint_like(first.images, 256)
    views = [chunks.views(plans, CUDA) for plans in first.beside]

    def alone() -> None:
        for _ in range(STEPS):
            step(images, views, 0.996)

    def fed() -> None:
        for batch in islice(stream, STEPS):
            drawn = [chunks.views(plans, CUDA) for plans in batch.beside]
            step(batch.images, drawn, 0.996)

    alone()
    fed()
    taken: dict[str, list[float]] = {"alone": [], "fed": []}
    for _ in range(REPEATS):
        for name, work in (("alone", alone), ("fed", fed)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            torch.cuda.synchronize()
            taken[name].append((time.perf_counter() - start) / STEPS)
    rates = {name: chosen.batch / statistics.median(times) for name, times in taken.items()}
    print(
        f"{chosen.model}/{chosen.patch}, batch {chosen.batch}: fed {rates['fed']:,.0f}, alone "
        f"{rates['alone']:,.0f} images a second, {rates['fed'] / rates['alone']:.3f} x"
    )


if __name__ == "__main__":
    main()
