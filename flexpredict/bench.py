"""What a recipe takes on this machine: rate, memory, and where the time of a step goes.

Images are synthetic and on the device; masks and noise are drawn by training's own code, and the
step is the one that training would compute. Masks are drawn before the clock starts, as loading
processes do it ahead of time; what they take is told apart.
"""

import gc
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flexpredict import build
from flexpredict.config import Settings
from flexpredict.data.loader import Order
from flexpredict.engine import estimate, precision
from flexpredict.engine.distributed import device_name
from flexpredict.engine.estimate import wait_for
from flexpredict.model.masking import MaskSampler
from flexpredict.progress import say
from flexpredict.train.chunks import Chunks
from flexpredict.train.forecast import free, memory_of
from flexpredict.train.step import Ways, step_of, ways_of

_BATCHES = 4  # of masks, used in turn
_REPEATS = 5  # of which the median is told; more if there is time
_MOMENTUM = 0.996
# Images at once: nobody asks whether more would fit, and attention kernels of libraries take 65,535
# sequences at most, of which an image has one for every target block.
MOST = 8_000


@dataclass(frozen=True, slots=True)
class Bench:
    """What was found. A measured step is of `batch_size` images, `at_once` of them at a time."""

    model: str
    device: str
    dtype: str
    compiled: bool
    graph: bool
    batch_size: int
    at_once: int
    context: float  # patches, the mean over chunks
    targets: float
    images_per_second: float
    step_ms: float
    gflop_per_image: float
    matmul_tflops: float
    share_of_matmul: float
    memory_gib: float | None  # None on CPUs, where a process holds much that is not the step's
    estimated_memory_gib: float
    breakdown_ms: Mapping[str, float]  # of a step, its pieces run one by one
    masks_ms: float  # of a step's masks, on one core
    schedule_steps: int | None  # None where it is in epochs of an unknown number of images
    schedule_seconds: float | None
    # Asked for with `fit`: how many images fit at once, and how the batch is to be cut for it.
    fits: Mapping[str, int] | None


def bench(
    settings: Settings,
    device: torch.device,
    *,
    seconds: float = 10.0,
    images: int | None = None,
    fit: bool = False,
) -> Bench:
    """Measures for about so many seconds, after what compiling takes.

    images: how many there are to train on, for the time of a schedule in epochs.
    fit: finds how many images fit at once, by halving and doubling the batch, and measures it in
        parts of no more.
    """
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    steps = _steps(settings, images)
    objective = build.build_objective(settings)
    sampler = build.build_sampler(settings, objective.encoder.grid)
    work = build.build_workload(settings, objective, sampler)
    ways = ways_of(settings, objective, device)
    del objective
    flops = estimate.flops_per_image(work)
    peak = estimate.matmul_rate(device, ways.dtype, seconds / 20)
    fits = None
    if fit:
        most = _fit(settings, sampler, work, ways, device)
        settings = _at_once(settings, min(most, settings.batch_size))
        fits = {
            "at_once": most,
            "batch_size": settings.batch_size,
            "accumulate": settings.accumulate,
        }
    asked = settings
    if device.type != "cuda":
        settings = _in_time(settings, flops, work.encoder.dim, peak, seconds / 2 / _REPEATS)
    if settings is not asked:
        count = settings.batch_size
        less = "1 image" if count == 1 else f"{count} images"
        say(f"to be in time, what is measured is a step of {less}, not {asked.batch_size:,}")
    at_once = settings.batch_size // settings.accumulate
    _forget(device)
    try:
        trial = Trial(settings, sampler, device)
        step = _clock(trial, device, seconds / 2)
    except torch.cuda.OutOfMemoryError:
        raise ValueError(
            f"{at_once} images at once do not fit on {device}: find out how many do with --fit, "
            f"lower batch_size, raise accumulate or set grad_checkpointing=true"
        ) from None
    used = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    work = build.build_workload(settings, trial.objective, sampler)
    flops = estimate.flops_per_image(work)
    need = memory_of(settings, work, at_once, ways)
    rate = settings.batch_size / step
    return Bench(
        model=settings.model,
        device=device_name(device),
        dtype=str(ways.dtype).removeprefix("torch."),
        compiled=ways.compiled,
        graph=ways.graph,
        batch_size=settings.batch_size,
        at_once=at_once,
        context=round(statistics.fmean(one.context for one in work.lengths), 1),
        targets=round(statistics.fmean(one.targets for one in work.lengths), 1),
        images_per_second=round(rate, 2),
        step_ms=round(step * 1e3, 3),
        gflop_per_image=round(flops.total / 1e9, 3),
        matmul_tflops=round(peak / 1e12, 4),
        share_of_matmul=round(rate * flops.total / peak, 4),
        memory_gib=None if used is None else round(used / 2**30, 3),
        estimated_memory_gib=round(need / 2**30, 3),
        breakdown_ms=trial.breakdown(seconds / 4),
        masks_ms=round(trial.masks_seconds(seconds / 20) * 1e3, 3),
        schedule_steps=steps,
        schedule_seconds=None if steps is None else round(steps * asked.batch_size / rate, 1),
        fits=fits,
    )


class Trial:
    """Steps of a recipe on synthetic images."""

    def __init__(self, settings: Settings, sampler: MaskSampler, device: torch.device) -> None:
        self.device = device
        self.objective = build.build_objective(settings)
        self.step = step_of(settings, self.objective, device)
        self.chunks = Chunks(sampler, settings.seed, settings.chunk_size, settings.accumulate)
        self.count = settings.batch_size
        shape = (self.count, settings.in_channels, *build.image_size(settings))
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        self._masks = itertools.cycle(
            [self.chunks(0, place * self.count, self.count) for place in range(_BATCHES)]
        )

    def __call__(self) -> None:
        """One step as training computes it."""
        views = [self.chunks.views(plans, self.device) for plans in next(self._masks)]
        self.step(self.images, views, _MOMENTUM)

    def breakdown(self, seconds: float) -> dict[str, float]:
        """Milliseconds of a step's pieces, the device waited for after each; no CUDA graph."""
        found: dict[str, list[float]] = defaultdict(list)
        end = time.perf_counter() + seconds
        while len(next(iter(found.values()), [])) < 3 or time.perf_counter() < end:
            for name, spent in self._pieces().items():
                found[name].append(spent * 1e3)
        return {name: round(statistics.median(spent), 3) for name, spent in found.items()}

    def masks_seconds(self, seconds: float) -> float:
        """For the masks of one step, on one core."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            draw = partial(self.chunks, 0, 0, self.count)
            return _clock(draw, torch.device("cpu"), seconds, warm_ups=1)
        finally:
            torch.set_num_threads(threads)

    def _pieces(self) -> dict[str, float]:
        spent = dict.fromkeys(("target_encoder", "forward", "backward", "update"), 0.0)
        step, targets = self.step, self.objective.targets
        parts = next(self._masks)
        micro = self.count // len(parts)
        step.optimizer.zero_grad(set_to_none=False)  # those of a graph stay where they are

        def timed(*given: Any) -> Tensor:
            start = self._now()
            found = targets(*given)
            spent["target_encoder"] += self._now() - start
            return found

        self.objective.targets = timed  # type: ignore[assignment, method-assign]
        try:
            for place, plans in enumerate(parts):
                some = self.images[place * micro : (place + 1) * micro]
                start = self._now()
                with precision.autocast(self.device, step.dtype):
                    loss = self.objective(some, self.chunks.views(plans, self.device))
                middle = self._now()
                step.scaler.scale(loss / len(parts)).backward()
                spent["forward"] += middle - start
                spent["backward"] += self._now() - middle
        finally:
            del self.objective.targets  # the method is there again
        spent["forward"] -= spent["target_encoder"]
        start = self._now()
        step.update(_MOMENTUM)
        spent["update"] = self._now() - start
        return spent

    def _now(self) -> float:
        wait_for(self.device)
        return time.perf_counter()


def most_images(batch: int, fits: Callable[[int], bool]) -> int:
    """The batch, halved until it fits or doubled as long as it does; 0 if no image fits."""
    size = batch
    while size and not fits(size):
        size //= 2
    while size >= batch and 2 * size <= MOST and fits(2 * size):
        size *= 2
    return size


def _fit(
    settings: Settings,
    sampler: MaskSampler,
    work: estimate.Workload,
    ways: Ways,
    device: torch.device,
) -> int:
    """How many images fit at once: by the estimate, on GPUs by trying from there on."""
    room = free(device)

    def by_estimate(size: int) -> bool:
        return memory_of(_at_once(settings, size), work, size, ways) <= room

    def by_trying(size: int) -> bool:
        return _fits(_at_once(settings, size), sampler, device)

    size = most_images(settings.batch_size, by_estimate)
    if device.type == "cuda":
        size = most_images(size or 1, by_trying)
    if not size:
        raise ValueError(
            f"not even one image at once fits on {device}: choose a smaller model or set "
            f"grad_checkpointing=true"
        )
    return size


def _at_once(settings: Settings, size: int) -> Settings:
    """The same batch, or a little less, in parts of this size; or this size, if it is larger."""
    parts = max(1, settings.batch_size // size)
    return settings.model_copy(update={"batch_size": parts * size, "accumulate": parts})


def _fits(settings: Settings, sampler: MaskSampler, device: torch.device) -> bool:
    """Whether two micro-batches, or the one there is, go through two steps."""
    parts = min(2, settings.accumulate)
    size = settings.batch_size // settings.accumulate
    say(f"trying {size} images at once")
    few = settings.model_copy(update={"batch_size": parts * size, "accumulate": parts})
    trial = None
    try:
        trial = Trial(few, sampler, device)
        trial()
        trial()
        wait_for(device)
        fits = True
    except torch.cuda.OutOfMemoryError:
        fits = False
    del trial
    _forget(device)  # not above: an exception holds on to what it met
    return fits


def _in_time(
    settings: Settings, flops: estimate.Flops, dim: int, rate: float, seconds: float
) -> Settings:
    """With a batch so small that a step takes no longer: on a CPU that may be a part of it."""
    share = estimate.usual_share(torch.device("cpu"), False, dim)

    def too_long(size: int) -> bool:
        return estimate.estimate_seconds(flops, size, rate, share) > seconds

    if not too_long(settings.batch_size):
        return settings
    size = settings.batch_size // settings.accumulate
    while size > 1 and too_long(size):
        size //= 2
    chunk = min(size, settings.chunk_size)  # noise is drawn for whole chunks
    return settings.model_copy(update={"batch_size": size, "accumulate": 1, "chunk_size": chunk})


def _steps(settings: Settings, images: int | None) -> int | None:
    """Of the whole schedule, if the number of images is known where it matters."""
    if settings.steps is None and images is None:
        return None
    count = settings.batch_size if images is None else images
    order = Order(count, settings.batch_size, settings.seed)
    return build.build_schedule(settings, order.steps_per_epoch).steps


def _forget(device: torch.device) -> None:
    """What earlier trials left on the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _clock(
    work: Callable[[], object],
    device: torch.device,
    seconds: float,
    *,
    warm_ups: int = _BATCHES + 1,
) -> float:
    """Seconds of one call: the median over groups of calls."""
    for _ in range(warm_ups):
        work()
    wait_for(device)
    start = time.perf_counter()
    work()
    wait_for(device)
    calls = max(1, int(seconds / 2 / _REPEATS / (time.perf_counter() - start)))
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < _REPEATS or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        wait_for(device)
        taken.append((time.perf_counter() - start) / calls)
    return statistics.median(taken)
