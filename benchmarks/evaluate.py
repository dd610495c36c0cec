"""How fast the evaluations are: each figure is a ratio against a reference in the same run.

    python benchmarks/evaluate.py [--device cuda] [--only heads propagation knn]

heads        a grid of 24 probes trained jointly on cached features, against one of them alone
propagation  DAVIS label propagation at 480p, patch 16, against a straightforward implementation
             that loops over context frames and holds the whole affinity: frames per second, memory
knn          50,000 queries against 1.28 million features of width 768 (on a CPU: fewer), seconds
             and memory, against one product with the whole set at a time
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.evaluate.knn import knn_accuracy
from flexpredict.evaluate.linear import PROTOCOLS, Schedule, shuffled, train_heads
from flexpredict.evaluate.propagate import propagate


def timed(work: Callable[[], Any], device: str, repeats: int = 3) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
    best = float("inf")
    for _ in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def peak(device: str) -> Iterator[list[float]]:
    """MiB in use above what was there before; on a CPU what the process grew by."""
    found: list[float] = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        torch.cuda.synchronize()
        found.append((torch.cuda.max_memory_allocated() - before) / 2**20)
    else:
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield found
        found.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 2**10)


def heads(device: str) -> None:
    sizes = [(1000, 768, 50_000), (100, 768, 50_000)] if device == "cuda" else [(100, 192, 10_000)]
    grid = PROTOCOLS["default"].heads
    for classes, dim, count in sizes:
        features = torch.randn(count, 4 * dim, device=device)
        labels = torch.randint(classes, (count,), device=device)

        def train(
            some: Any,
            features: Tensor = features,
            labels: Tensor = labels,
            dim: int = dim,
            classes: int = classes,
        ) -> None:
            train_heads(
                some,
                shuffled(features, labels, 256, 0),
                schedule=Schedule(1),
                batch_size=256,
                dim=dim,
                classes=classes,
                device=device,
            )

        def plain(
            features: Tensor = features,
            labels: Tensor = labels,
            dim: int = dim,
            classes: int = classes,
        ) -> None:
            head = nn.Sequential(nn.BatchNorm1d(4 * dim), nn.Linear(4 * dim, classes)).to(device)
            optimizer = torch.optim.SGD(head.parameters(), 0.1, 0.9, nesterov=True)
            for x, y in shuffled(features, labels, 256, 0)(0):
                optimizer.zero_grad()
                F.cross_entropy(head(x), y).backward()
                optimizer.step()

        joint = timed(lambda train=train: train(grid), device)  # type: ignore[misc]
        one = [head for head in grid if head.layers == 4 and head.batch_norm][:1]
        alone = timed(lambda train=train, one=one: train(one), device)  # type: ignore[misc]
        usual = timed(plain, device)
        print(
            f"heads: {len(grid)} on {classes} classes together {joint:.3f} s an epoch of "
            f"{count:,} features of width {4 * dim}; one alone {alone:.3f} s: "
            f"{joint / alone:.2f} x; one as torch modules {usual:.3f} s: {joint / usual:.2f} x",
            flush=True,
        )


def straightforward(frames: list[Tensor], first: Tensor) -> list[Tensor]:
    """Frame by frame: the affinity to each context frame, masked; all of them together; top 5."""
    _, height, width = frames[0].shape
    place = torch.stack(
        torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1
    ).flatten(0, 1)
    near = ((place[:, None] - place).abs() <= 12).all(-1).to(frames[0])
    known: list[tuple[Tensor, Tensor]] = [(frames[0], first)]
    out = []
    for frame in frames[1:]:
        here = F.normalize(frame.flatten(1), dim=0)
        parts, labels = [], []
        for features, soft in [known[0], *known[1:][-7:]]:
            there = F.normalize(features.flatten(1), dim=0)
            parts.append(torch.exp(there.T @ here / 0.1) * near)
            labels.append(soft.flatten(1))
        affinity = torch.cat(parts)  # (frames · N, N)
        smallest = affinity.topk(5, dim=0).values[-1]
        affinity[affinity < smallest] = 0
        affinity = affinity / affinity.sum(0)
        soft = (torch.cat(labels, 1) @ affinity).view(-1, height, width)
        known.append((frame, soft))
        out.append(soft)
    return out


def propagation(device: str) -> None:
    torch.manual_seed(0)
    frames = list(torch.randn(25, 768, 30, 52, device=device))
    labels = F.one_hot(torch.randint(4, (30, 52), device=device), 4).permute(2, 0, 1).float()
    with peak(device) as ours_memory:
        ours = list(propagate(frames, labels))
    with peak(device) as plain_memory:
        plain = straightforward(frames, labels)
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, plain, strict=True))
    fast = timed(lambda: list(propagate(frames, labels)), device)
    slow = timed(lambda: straightforward(frames, labels), device)
    count = len(frames) - 1
    print(
        f"propagation: {count / fast:.0f} against {count / slow:.0f} frames a second, "
        f"{slow / fast:.2f} x; memory {ours_memory[0]:.0f} against {plain_memory[0]:.0f} MiB, "
        f"{ours_memory[0] / max(plain_memory[0], 1e-9):.2f} x; largest difference {worst:.1e}",
        flush=True,
    )


def knn(device: str) -> None:
    train, test = (1_280_000, 50_000) if device == "cuda" else (200_000, 1_000)
    width, classes = 768, 1000
    features = torch.randn(train, width, device=device)
    labels = torch.randint(classes, (train,), device=device)
    queries, truth = features[:test] + 0.1, labels[:test]
    with peak(device) as memory:
        start = time.perf_counter()
        accuracy = knn_accuracy(features, labels, queries, truth)
        _wait(device)
        seconds = time.perf_counter() - start
    few = 1_000

    def whole() -> None:
        likeness = F.normalize(queries[:few]) @ F.normalize(features).T
        likeness.topk(20, dim=1)

    plain = timed(whole, device, repeats=1) * test / few
    print(
        f"knn: {test:,} against {train:,} features of width {width}: {seconds:.1f} s "
        f"({plain / seconds:.2f} x as fast as whole products), {memory[0]:.0f} MiB, "
        f"accuracy {accuracy:.0f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    known = {"heads": heads, "propagation": propagation, "knn": knn}
    parser.add_argument("--only", nargs="*", choices=list(known), default=list(known))
    chosen = parser.parse_args()
    for name in chosen.only:
        known[name](chosen.device)


if __name__ == "__main__":
    main()
