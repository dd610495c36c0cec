"""How fast a pretraining step is: ratios against plain steps in the same run, on one GPU.

python benchmarks/step.py rate --models b16,l16 [--masks even,paper]   against `reference`
python benchmarks/step.py small                                         against the sketch
python benchmarks/step.py many                                          several runs at once
python benchmarks/step.py loss                                          loss differences
python benchmarks/step.py noise                                         StoP against none

`rate` also says how much that is of the attainable rate (step_anatomy.py); with `--images
noise,photos/` of pixels drawn one by one, and of those that `flexpredict pretrain photos/` would
read. `many` shares the GPU by NVIDIA's MPS, where that is installed.
"""

import argparse
import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.multiprocessing as mp
from reference_step import PlainStep, difference_to_transformers
from step_anatomy import attainable
from step_cases import (
    CUDA,
    Case,
    Given,
    masks_for,
    measured,
    ours,
    pictures_of,
    say,
    setting,
    smooth,
)
from torch import Tensor

from flexpredict.data.sources import open_source
from flexpredict.engine import precision
from flexpredict.engine.mps import sharing
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective.views import View

RESTED = 8  # batches of which losses are compared at the same weights


def rates(
    models: Sequence[str],
    batches: Mapping[str, Sequence[int]],
    maskings: Sequence[str],
    images: Sequence[str],
    precision: str,
    ways: Sequence[str],
) -> None:
    for one in set(images) - {"noise"}:
        open_source(one)  # or says that it is not there, before minutes go by
    for name in models:
        objective, _ = setting(name)
        plain = PlainStep(objective, lean=False, dtype=torch.float32)
        say(
            {"model": name, "to_transformers": difference_to_transformers(objective.encoder, plain)}
        )
        del objective, plain
        for masking, pictures in itertools.product(maskings, images):
            # Ever new lengths are not compiled, whatever is asked for.
            kinds = {way == "compiled" and masking != "paper" for way in ways}
            by = [{"compiled": c, "graph": False, "precision": precision} for c in sorted(kinds)]
            best = {}
            for kind, options in (("reference", [{}]), ("ours", by)):
                cases = [(n, o) for o in options for n in batches[kind]]
                found = [measured(name, kind, n, masking, pictures=pictures, **o) for n, o in cases]
                for record in found:
                    say(record)
                best[kind] = max(found, key=lambda record: record["rate"])
            ratio = best["ours"]["rate"] / best["reference"]["rate"]
            say({
                "model": name, "masks": masking, "pictures": pictures, "precision": precision,
                "ratio": round(ratio, 3),
            })  # fmt: skip
            if (masking, pictures, precision) == ("even", "noise", "bfloat16"):
                attainable(name, best["ours"]["batch"], best["ours"]["rate"])


def small(batch: int) -> None:
    for name in ("s8", "ti8", "ti4"):
        sketch = measured(name, "sketch", batch, "even")
        say(sketch)
        for options in ({"compiled": True, "graph": True}, {"compiled": False, "graph": True}):
            record = measured(name, "ours", batch, "even", **options)
            say(record | {"ratio": round(record["rate"] / sketch["rate"], 3)})


def many(name: str, batch: int, counts: Sequence[int]) -> None:
    """Processes with a run each, at once: images a second in all, over those of one alone."""
    alone = 0.0
    with sharing() as variables:
        os.environ.update(variables)
        for count in counts:
            total = _total(name, batch, count)
            alone = alone or total
            say({"model": name, "batch": batch, "at once": count, "rate": round(total),
                 "over one": round(total / alone, 3), "by MPS": bool(variables)})  # fmt: skip


def _total(name: str, batch: int, count: int) -> float:
    context = mp.get_context("spawn")
    ready, rates = context.Barrier(count), context.Queue()
    runs = mp.spawn(_one_of_many, (name, batch, ready, rates), count, join=False)
    total = sum(rates.get() for _ in range(count))
    runs.join()
    return total


def _one_of_many(_: int, name: str, batch: int, ready: Any, rates: Any) -> None:
    case = Case(name, "ours", batch, "even", compiled=False, graph=True)
    for _ in range(3):
        case.step()
    torch.cuda.synchronize()
    ready.wait()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < 4:
        for _ in range(10):
            case.step()
        torch.cuda.synchronize()
        steps += 10
    rates.put(steps * batch / (time.perf_counter() - start))
    ready.wait()  # all others still have company


def overhead(name: str, batch: int, repeats: int, *, compiled: bool) -> None:
    """StoP against deterministic positions: time and memory.

    Steps of both take turns, each between two events on the device; a repeat is ten of each, of
    which the medians are compared, so that a hiccup of the machine is nobody's.
    """
    steps, peaks = {}, {}
    for positions in ("sincos", "stop"):
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        objective, settings = setting(name, positions=positions)
        step = ours(objective, settings, compiled=compiled, graph=False)
        images = pictures_of("noise", settings, batch)
        masks = masks_for(settings, objective, batch, 0)
        view = [View(masks, Draws())]  # noise is drawn within the step: it is what is asked about
        steps[positions] = lambda s=step, i=images, v=view: s(i, [v], 0.996)
        for _ in range(3):
            steps[positions]()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps[positions]()
        torch.cuda.synchronize()
        peaks[positions] = torch.cuda.max_memory_allocated() - before
        state = sum(p.numel() for p in objective.parameters()) * 12
        peaks[positions] += state
    ratios = []
    gc.disable()
    for turn in range(repeats):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
        order = sorted(steps, reverse=bool(turn % 2)) * 10  # none is always the first
        marks[0].record()
        for positions, mark in zip(order, marks[1:], strict=True):
            steps[positions]()
            mark.record()
        torch.cuda.synchronize()
        taken: dict[str, list[float]] = {"sincos": [], "stop": []}
        for positions, start, end in zip(order, marks, marks[1:], strict=False):
            taken[positions].append(start.elapsed_time(end))
        ratios.append(statistics.median(taken["stop"]) / statistics.median(taken["sincos"]))
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    half = 2.045 * spread / repeats**0.5  # Student's, 29 degrees of freedom
    say({
        "model": name, "batch": batch, "compiled": compiled, "repeats": repeats,
        "time": round(mean, 4),
        "median": round(statistics.median(ratios), 4), "largest": round(max(ratios), 4),
        "interval": [round(mean - half, 4), round(mean + half, 4)],
        "memory": round(peaks["stop"] / peaks["sincos"], 4),
    })  # fmt: skip


def losses(name: str, batch: int, steps: int, seed: int, weights: int, ways: Sequence[str]) -> None:
    """Loss differences to the reference over some steps, beside those that rounding makes.

    Of the reference itself, in bfloat16 against float32; and of the sketch, which rounds elsewhere.
    Then the same at rest, of other images at the weights that the reference in float32 has come to:
    there no way of computing has gone a way of its own.
    """
    trained, rested, reached = {}, {}, None
    for kind in ("float32", "bfloat16", "sketch", *ways):
        way = _Way(kind, name, weights)
        found = [float(way.step(*given)) for given in way.batches(batch, steps, seed)]
        say({"model": name, "kind": kind, "loss": found[:: max(1, steps // 8)]})
        reached = reached or {k: v.cpu() for k, v in way.objective.state_dict().items()}
        way.objective.load_state_dict(reached)
        again = [way.loss(*given) for given in way.batches(batch, RESTED, seed + steps)]
        trained[kind], rested[kind] = torch.tensor(found), torch.tensor(again)
        del way
        gc.collect()  # a way is a cycle
        torch.cuda.empty_cache()
    about = {"model": name, "weights": weights, "seed": seed}
    for where, runs in ((f"over {steps} steps", trained), ("at rest", rested)):
        for kind, one in runs.items():
            for other in ("float32", "bfloat16"):
                if kind not in ("float32", other):
                    away = one - runs[other]
                    say(about | {
                        "where": where, "of": kind, "to": other, "mean": float(away.abs().mean()),
                        "largest": float(away.abs().max()), "signed": float(away.mean()),
                    })  # fmt: skip


class _Way:
    """The reference in float32 or bfloat16, the sketch, or our step: a step, and a loss alone."""

    def __init__(self, kind: str, name: str, weights: int) -> None:
        torch._dynamo.reset()
        self.objective, self.settings = setting(name, seed=weights)
        self.dtype = torch.float32 if kind == "float32" else torch.bfloat16
        if kind in ("compiled", "eager"):
            small, whole = name in ("s8", "ti8"), self.objective
            mine = ours(whole, self.settings, compiled=kind == "compiled", graph=small)
            self.step = lambda images, masks, noise: mine(
                images, [self._view(masks, noise)], 0.996
            )[0]
            self._loss = lambda images, masks, noise: whole(images, self._view(masks, noise))
        else:
            plain = PlainStep(self.objective, lean=kind == "sketch", dtype=self.dtype)
            self.objective, std = plain.model, self.settings.noise_std
            self.step = lambda images, masks, noise: plain(images, masks, noise * std)
            self._loss = lambda images, masks, noise: plain.loss(images, masks, noise * std)

    def loss(self, images: Tensor, masks: Masks, noise: Tensor) -> float:
        """As in training: blocks round otherwise where no gradient is asked for."""
        with precision.autocast(CUDA, self.dtype):
            return float(self._loss(images, masks, noise).detach())

    def batches(self, count: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Masks, Tensor]]:
        generator = torch.Generator(CUDA).manual_seed(seed)
        for number in range(steps):
            yield smooth(self.settings, self.objective, count, generator, seed * steps + number)

    @staticmethod
    def _view(masks: Masks, noise: Tensor) -> list[View]:
        return [View(masks, Given(noise))]


def _several(*known: str) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"{unknown.pop()!r} is none of {', '.join(known)}")
        return found

    return read


def main() -> None:
    parser = argparse.ArgumentParser(epilog="What may be several is given with commas between.")
    parser.add_argument("what", choices=["rate", "small", "many", "loss", "noise"])
    parser.add_argument("--models", default="b16")
    parser.add_argument("--batches", default="256,1024")
    parser.add_argument("--reference", help="batches of the reference, if others")
    parser.add_argument(
        "--masks", type=_several("even", "paper"), default="even", help="of rate: even, paper"
    )
    parser.add_argument("--images", default="noise", help="of rate: noise, sources of images")
    parser.add_argument(
        "--precision", choices=["bfloat16", "float8"], default="bfloat16", help="of our side"
    )
    parser.add_argument(
        "--ways", type=_several("compiled", "eager"), default="compiled",
        help="of our side: compiled, eager",
    )  # fmt: skip
    parser.add_argument("--runs", default="4", help="at once")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the images, masks and noise of loss"
    )
    parser.add_argument("--weights", type=int, default=0, help="seed of the first weights of loss")
    chosen = parser.parse_args()
    names = chosen.models.split(",")
    batches = [int(batch) for batch in chosen.batches.split(",")]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # the patches' convolution is one of float32, too
    if chosen.what == "rate":
        theirs = [int(batch) for batch in (chosen.reference or chosen.batches).split(",")]
        each = {"ours": batches, "reference": theirs}
        pictures = chosen.images.split(",")
        rates(names, each, chosen.masks, pictures, chosen.precision, chosen.ways)
    elif chosen.what == "small":
        small(batches[-1])
    for name in names:
        if chosen.what == "many":
            many(name, batches[-1], [1, *map(int, chosen.runs.split(","))])
        elif chosen.what == "noise":
            for way in chosen.ways:
                overhead(name, batches[-1], 30, compiled=way == "compiled")
        elif chosen.what == "loss":
            losses(name, batches[0], chosen.steps, chosen.seed, chosen.weights, chosen.ways)


if __name__ == "__main__":
    main()
