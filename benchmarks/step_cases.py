"""What the benchmarks of the step measure: plain steps and ours, on images made up, on one GPU.

Images, masks and noise are there before the clock starts.
"""

import gc
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from reference_step import PlainStep
from torch import Tensor

from flexpredict import build
from flexpredict.config import Settings, settings_from
from flexpredict.data.sources import open_source
from flexpredict.data.transforms import Transform, read_images
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View
from flexpredict.train.step import Step, step_of, ways_of

CUDA = torch.device("cuda")
MODELS = {
    "b16": {"model": "vit_base", "patch_size": 16, "image_size": 224},
    "l16": {"model": "vit_large", "patch_size": 16, "image_size": 224},
    "h14": {"model": "vit_huge", "patch_size": 14, "image_size": 224},
    "s16": {"model": "vit_small", "patch_size": 16, "image_size": 224},
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


def setting(name: str, masking: str = "even", **more: object) -> tuple[IJepa, Settings]:
    settings = settings_from({**MODELS[name], "positions": "stop", "masking": masking, **more})
    with CUDA:  # drawing a ViT-H on a CPU takes half a minute
        objective = build.build_objective(settings)
    assert isinstance(objective, IJepa)
    return objective.train(), settings


def masks_for(settings: Settings, objective: IJepa, batch: int, seed: int) -> Masks:
    sampler = build.build_sampler(settings, objective.encoder.grid)
    return sampler.sample(batch, torch.Generator().manual_seed(seed)).to(CUDA)


def ours(
    objective: IJepa,
    settings: Settings,
    *,
    compiled: bool,
    graph: bool,
    precision: str = "bfloat16",
) -> Step:
    """Training's own step."""
    ways = {"compile": compiled, "graph": graph, "precision": precision}
    step = step_of(settings.model_copy(update=ways), objective, CUDA)
    for group in step.optimizer.param_groups:  # as the plain steps have it
        group["lr"], group["weight_decay"] = 1e-4, 0.04 if group["decay"] else 0.0
    return step


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


def pictures_of(name: str, settings: Settings, batch: int) -> Tensor:
    """Noise, every pixel drawn by itself; or images of any source, each of them several times.

    What a product's numbers are decides how much power it draws, and with it the clock of a GPU
    that is at its limit: photographs are what people train on.
    """
    size = settings.image_size
    assert isinstance(size, int)
    if name == "noise":
        return torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=CUDA)
    source = open_source(name, image_size=size)
    rows = range(min(batch, len(source)))
    images = read_images(source, rows, (size, size), Transform()).to(CUDA)
    return images.repeat(-(-batch // len(rows)), 1, 1, 1)[:batch].contiguous()


def smooth(
    settings: Settings, objective: IJepa, batch: int, generator: torch.Generator, masks_seed: int
) -> tuple[Tensor, Masks, Tensor]:
    """Images that can be learnt from, masks, and standard normal noise."""
    device = generator.device
    low = torch.rand(batch, 3, 8, 8, device=device, generator=generator)
    images = F.interpolate(low, settings.image_size, mode="bicubic").clamp(0, 1) * 255
    masks = masks_for(settings, objective, batch, masks_seed)
    shape = (*masks.targets.shape, objective.encoder.dim)
    return images.to(torch.uint8), masks, torch.randn(shape, device=device, generator=generator)


def noise_for(objective: IJepa, masks: Masks) -> Tensor:
    shape = (*masks.targets.shape, objective.encoder.dim)
    return torch.randn(shape, device=CUDA)


class Case:
    """One step of a model at a batch size: reference, sketch or ours."""

    def __init__(
        self,
        name: str,
        kind: str,
        batch: int,
        masking: str,
        *,
        pictures: str = "noise",
        **options: object,
    ) -> None:
        objective, settings = setting(name, masking=masking)
        self.batch, self.ways = batch, {}
        self.images = pictures_of(pictures, settings, batch)
        self.masks = masks_for(settings, objective, batch, 0)
        self.noise = noise_for(objective, self.masks)
        std = settings.noise_std
        if kind in ("reference", "sketch"):
            plain = PlainStep(objective, lean=kind == "sketch", dtype=torch.bfloat16)
            del objective
            self.step: Callable[[], object] = lambda: plain(
                self.images, self.masks, self.noise * std
            )
        else:
            step = ours(objective, settings, **options)  # type: ignore[arg-type]
            asked = {"compile": options["compiled"], "graph": options["graph"]}
            found = ways_of(settings.model_copy(update=asked), objective, CUDA)
            self.ways = {"compiled": found.compiled, "graph": found.graph}  # not always as asked
            view = [View(self.masks, Given(self.noise))]
            self.step = lambda: step(self.images, [view], 0.996)

    def rate(self, seconds: float = 3.0) -> float:
        return self.batch / clock(self.step, seconds)


def measured(name: str, kind: str, batch: int, masking: str, **options: object) -> dict:
    torch._dynamo.reset()
    gc.collect()  # steps before this one are cycles
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
        "model": name, "kind": kind, "batch": batch, "masks": masking, **options, **case.ways,
        "rate": round(rate, 1), "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "first_s": round(first, 1), "lengths": lengths,
    }  # fmt: skip


def say(record: dict) -> None:
    print(json.dumps(record), flush=True)
