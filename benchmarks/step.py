"""How fast a pretraining step is: ratios against plain steps in the same run, on one GPU.

    python benchmarks/step.py rate --models b16,l16,h14 [--masks even]     against `reference`
    python benchmarks/step.py small                                         against the sketch
    python benchmarks/step.py loss                                          loss differences
    python benchmarks/step.py noise                                         StoP against none
    python benchmarks/step.py profile --models b16                          time by kernel

Images are synthetic and on the GPU; masks and noise are drawn before the clock starts.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from reference_step import PlainStep, difference_to_transformers

from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.engine import optim, precision
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View
from flexpredict.train.step import Step

CUDA = torch.device("cuda")
MODELS = {
    "b16": {"model": "vit_base", "patch_size": 16, "image_size": 224},
    "l16": {"model": "vit_large", "patch_size": 16, "image_size": 224},
    "h14": {"model": "vit_huge", "patch_size": 14, "image_size": 224},
    "s8": {"model": "vit_small", "patch_size": 8, "image_size": 64},
    "ti8": {"model": "vit_tiny", "patch_size": 8, "image_size": 64},
    "ti4": {"model": "vit_tiny", "patch_size": 4, "image_size": 64},
}


class Given(Draws):
    """Noise that was drawn before."""

    def __init__(self, noise: Tensor | None) -> None:
        super().__init__()
        self.noise = noise

    def normal(self, *shape: int, like: Tensor) -> Tensor:  # noqa: ARG002
        assert self.noise is not None
        assert self.noise.shape == shape
        return self.noise


def setting(name: str, **more: object) -> tuple[IJepa, object]:
    settings = settings_from({**MODELS[name], "positions": "stop", **more})
    objective = build.build_objective(settings).to(CUDA).train()
    assert isinstance(objective, IJepa)
    return objective, settings


def masks_for(settings: object, objective: IJepa, batch: int, seed: int) -> Masks:
    sampler = build.build_sampler(settings, objective.encoder.grid)  # type: ignore[arg-type]
    return sampler.sample(batch, torch.Generator().manual_seed(seed)).to(CUDA)


def ours(objective: IJepa, *, compiled: bool, graph: bool, dtype: torch.dtype) -> Step:
    groups = optim.parameter_groups([objective.encoder, objective.predictor])
    for group in groups:
        group["weight_decay"] = 0.04 if group.pop("decay") else 0.0
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    if compiled:
        precision.compile_parts(objective)
    return Step(objective, optimizer, device=CUDA, dtype=dtype, graph=graph)


def clock(work: Callable[[], object], seconds: float = 3.0) -> float:
    """Seconds of one call: the median of groups of calls."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    calls = max(1, min(20, int(seconds / 5 / max(once, 1e-6))))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) / calls)
    return statistics.median(taken)


def synthetic(settings: object, batch: int) -> Tensor:
    size = settings.image_size  # type: ignore[attr-defined]
    return torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=CUDA)


def noise_for(objective: IJepa, masks: Masks) -> Tensor:
    shape = (*masks.targets.shape, objective.encoder.dim)
    return torch.randn(shape, device=CUDA)


class Case:
    """One step of a model at a batch size: reference, sketch or ours."""

    def __init__(self, name: str, kind: str, batch: int, masking: str, **options: object) -> None:
        objective, settings = setting(name, masking=masking)
        self.batch = batch
        self.images = synthetic(settings, batch)
        self.masks = masks_for(settings, objective, batch, 0)
        self.noise = noise_for(objective, self.masks)
        std = settings.noise_std  # type: ignore[attr-defined]
        if kind in ("reference", "sketch"):
            plain = PlainStep(objective, lean=kind == "sketch", dtype=torch.bfloat16)
            del objective
            self.step: Callable[[], object] = lambda: plain(
                self.images, self.masks, self.noise * std
            )
        else:
            step = ours(objective, dtype=torch.bfloat16, **options)  # type: ignore[arg-type]
            view = [View(self.masks, Given(self.noise))]
            self.step = lambda: step(self.images, [view], 0.996)

    def rate(self, seconds: float = 3.0) -> float:
        return self.batch / clock(self.step, seconds)


def measured(name: str, kind: str, batch: int, masking: str, **options: object) -> dict:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        case = Case(name, kind, batch, masking, **options)
        case.step()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        rate = case.rate()
    except torch.cuda.OutOfMemoryError:
        return {"model": name, "kind": kind, "batch": batch, "rate": 0.0, "note": "out of memory"}
    lengths = [case.masks.context.shape[1], case.masks.targets.shape[2]]
    return {
        "model": name, "kind": kind, "batch": batch, "masks": masking, **options,
        "rate": round(rate, 1), "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "first_s": round(first, 1), "lengths": lengths,
    }  # fmt: skip


def say(record: dict) -> None:
    print(json.dumps(record), flush=True)


def rates(models: Sequence[str], batches: Sequence[int], masking: str) -> None:
    for name in models:
        objective, _ = setting(name)
        plain = PlainStep(objective, lean=False, dtype=torch.float32)
        say(
            {"model": name, "to_transformers": difference_to_transformers(objective.encoder, plain)}
        )
        del objective, plain
        best = {}
        for kind, options in (("reference", {}), ("ours", {"compiled": True, "graph": False})):
            found = [measured(name, kind, batch, masking, **options) for batch in batches]
            for record in found:
                say(record)
            best[kind] = max(record["rate"] for record in found)
        say({"model": name, "masks": masking, "ratio": round(best["ours"] / best["reference"], 3)})


def small(batch: int) -> None:
    for name in ("s8", "ti8", "ti4"):
        sketch = measured(name, "sketch", batch, "even")
        say(sketch)
        for options in ({"compiled": True, "graph": True}, {"compiled": True, "graph": False}):
            record = measured(name, "ours", batch, "even", **options)
            say(record | {"ratio": round(record["rate"] / sketch["rate"], 3)})


def profile(models: Sequence[str], batch: int, options: dict) -> None:
    for name in models:
        torch._dynamo.reset()
        case = Case(name, "ours", batch, "even", **options)
        for _ in range(3):
            case.step()
        torch.cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds) as seen:
            for _ in range(2):
                case.step()
            torch.cuda.synchronize()
        spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
        for event in seen.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                spent[event.name][0] += event.device_time / 2e3
                spent[event.name][1] += 0.5
        whole = sum(time_ for time_, _ in spent.values())
        print(f"{name} batch {batch}: {whole:.1f} ms of kernels in a step")
        for kernel, (time_, count) in sorted(spent.items(), key=lambda i: -i[1][0])[:28]:
            print(f"{time_:8.2f} ms {100 * time_ / whole:5.1f} % {count:6.0f} x {kernel[:110]}")
        sys.stdout.flush()


class _Products(TorchDispatchMode):
    """Notes every matrix product and attention that a step computes, with the shapes it has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if any(part in name for part in ("aten.mm", "aten.addmm", "aten.bmm", "attention")):
            key = name + str(
                [(a.shape, a.stride(), a.dtype) if isinstance(a, Tensor) else a for a in args]
            )
            self.calls.setdefault(key, [0, func, args, kwargs or {}])[0] += 1
        return func(*args, **(kwargs or {}))


def bytes_of(objective: IJepa, masks: Masks, batch: int) -> float:
    """What has to travel between memory and processor beside products, each tensor once.

    Per token and block of width D, in units of D bytes. Forward: two sums with norms, each reads
    the float32 stream and a branch, writes the stream and the norm (12 + 12); GELU reads and writes
    4 D numbers (16). Backward: GELU reads two and writes one (24), each norm reads the stream, its
    gradient and the branch's, writes the stream's gradient and its bfloat16 copy (16 + 16).
    Per weight: AdamW 28, moving average 12, one cast for each use 6.
    """
    encoder, predictor = objective.encoder, objective.predictor
    rows, columns = encoder.grid
    context, (blocks, targets) = masks.context.shape[1], masks.targets.shape[1:]
    dim, narrow = encoder.dim, predictor.predictor_norm.weight.numel()
    depth, shallow = len(encoder.blocks), len(predictor.predictor_blocks)
    forward, both = 40, 96
    tokens = rows * columns * depth * dim * forward + context * depth * dim * both
    tokens += blocks * (context + targets) * shallow * narrow * both
    weights = sum(p.numel() for p in encoder.parameters())
    small = sum(p.numel() for p in predictor.parameters())
    return batch * tokens + weights * (28 + 12 + 6 + 6) + small * (28 + 6)


def attainable(name: str, batch: int) -> None:
    """The step against its own products and attentions timed alone, and its bytes copied."""
    torch._dynamo.reset()
    ours_rate = measured(name, "ours", batch, "even", compiled=True, graph=False)
    torch.cuda.empty_cache()
    case = Case(name, "ours", batch, "even", compiled=False, graph=False)
    with _Products() as seen:
        case.step()
    alone = 0.0
    for count, func, args, kwargs in seen.calls.values():
        alone += count * clock(lambda func=func, a=args, k=kwargs: func(*a, **k), 0.1)
    room = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    there = torch.empty_like(room)
    bandwidth = 2 * room.numel() / clock(lambda: there.copy_(room), 0.2)
    objective, _ = setting(name)
    moved = bytes_of(objective, case.masks, batch) / bandwidth
    spent = batch / ours_rate["rate"]
    say({
        "model": name, "batch": batch, "step_ms": round(spent * 1e3, 1),
        "products_ms": round(alone * 1e3, 1), "bytes_ms": round(moved * 1e3, 1),
        "TB_per_s": round(bandwidth / 1e12, 2), "of_attainable": round((alone + moved) / spent, 3),
    })  # fmt: skip


def overhead(name: str, batch: int, repeats: int) -> None:
    """StoP against deterministic positions, in turn and paired: time and memory."""
    steps, peaks = {}, {}
    for positions in ("sincos", "stop"):
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        objective, settings = setting(name, positions=positions)
        step = ours(objective, compiled=True, graph=False, dtype=torch.bfloat16)
        images, masks = synthetic(settings, batch), masks_for(settings, objective, batch, 0)
        view = [View(masks, Draws())]  # noise is drawn within the step: it is what is asked about
        steps[positions] = lambda s=step, i=images, v=view: s(i, [v], 0.996)
        before = torch.cuda.memory_allocated()
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
    for _ in range(repeats):
        taken = {}
        for positions, work in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(3):
                work()
            torch.cuda.synchronize()
            taken[positions] = time.perf_counter() - start
        ratios.append(taken["stop"] / taken["sincos"])
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    half = 2.045 * spread / repeats**0.5  # Student's, 29 degrees of freedom
    say({
        "model": name, "batch": batch, "repeats": repeats, "time": round(mean, 4),
        "interval": [round(mean - half, 4), round(mean + half, 4)],
        "memory": round(peaks["stop"] / peaks["sincos"], 4),
    })  # fmt: skip


def memory(name: str, batches: Sequence[int]) -> None:
    for checkpointing in (False, True):
        for batch in batches:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            objective, settings = setting(name, grad_checkpointing=checkpointing)
            step = ours(objective, compiled=True, graph=False, dtype=torch.bfloat16)
            images, masks = synthetic(settings, batch), masks_for(settings, objective, batch, 0)
            for _ in range(2):
                step(images, [[View(masks, Draws())]], 0.996)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            step(images, [[View(masks, Draws())]], 0.996)
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() / 2**30
            say(
                {
                    "model": name,
                    "checkpointing": checkpointing,
                    "batch": batch,
                    "GiB": round(peak, 3),
                }
            )
            del objective, step, images, masks


def losses(name: str, batch: int, steps: int) -> None:
    """Loss differences to the reference over some steps, beside the reference's own rounding."""
    runs: dict[str, list[float]] = {}
    objective, settings = setting(name)
    start = {key: value.clone() for key, value in objective.state_dict().items()}
    for kind, dtype in (
        ("float32", torch.float32), ("bfloat16", torch.bfloat16), ("ours", torch.bfloat16)
    ):  # fmt: skip
        torch._dynamo.reset()
        objective, settings = setting(name)
        objective.load_state_dict(start)
        step: Callable[..., object]
        if kind == "ours":
            mine = ours(objective, compiled=True, graph=name in ("s8", "ti8"), dtype=dtype)

            def step(images: Tensor, masks: Masks, noise: Tensor, mine: Step = mine) -> object:
                return mine(images, [[View(masks, Given(noise))]], 0.996)[0]
        else:
            plain = PlainStep(objective, lean=False, dtype=dtype)
            std = settings.noise_std  # type: ignore[attr-defined]

            def step(
                images: Tensor,
                masks: Masks,
                noise: Tensor,
                plain: PlainStep = plain,
                std: float = std,
            ) -> object:
                return plain(images, masks, noise * std)

        generator, found = torch.Generator(CUDA).manual_seed(0), []
        for number in range(steps):
            low = torch.rand(batch, 3, 8, 8, device=CUDA, generator=generator)
            size = settings.image_size  # type: ignore[attr-defined]
            images = torch.nn.functional.interpolate(low, size, mode="bicubic").clamp(0, 1) * 255
            masks = masks_for(settings, objective, batch, number)
            shape = (*masks.targets.shape, objective.encoder.dim)
            noise = torch.randn(shape, device=CUDA, generator=generator)
            found.append(float(step(images.to(torch.uint8), masks, noise)))  # type: ignore[arg-type]
        runs[kind] = found
    exact = torch.tensor(runs["float32"])
    rounding = (torch.tensor(runs["bfloat16"]) - exact).abs()
    to_bf16 = (torch.tensor(runs["ours"]) - torch.tensor(runs["bfloat16"])).abs()
    to_exact = (torch.tensor(runs["ours"]) - exact).abs()
    say({
        "model": name, "steps": steps, "loss": [runs["float32"][0], runs["float32"][-1]],
        "reference bf16 - float32": [float(rounding.mean()), float(rounding.max())],
        "ours - reference bf16": [float(to_bf16.mean()), float(to_bf16.max())],
        "ours - reference float32": [float(to_exact.mean()), float(to_exact.max())],
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "what", choices=["rate", "small", "loss", "profile", "attainable", "noise", "memory"]
    )
    parser.add_argument("--models", default="b16")
    parser.add_argument("--batches", default="256,1024")
    parser.add_argument("--masks", default="even")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eager", action="store_true")
    chosen = parser.parse_args()
    names = chosen.models.split(",")
    batches = [int(batch) for batch in chosen.batches.split(",")]
    torch.set_float32_matmul_precision("highest")
    match chosen.what:
        case "rate":
            rates(names, batches, chosen.masks)
        case "small":
            small(batches[-1])
        case "profile":
            profile(names, batches[-1], {"compiled": not chosen.eager, "graph": False})
        case "attainable":
            for name in names:
                attainable(name, batches[-1])
        case "noise":
            for name in names:
                overhead(name, batches[-1], 30)
        case "memory":
            for name in names:
                memory(name, batches)
        case "loss":
            for name in names:
                losses(name, batches[0], chosen.steps)


if __name__ == "__main__":
    main()
