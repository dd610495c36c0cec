"""The training loop, to be read in one sitting."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flexpredict import build
from flexpredict.config import Settings
from flexpredict.data import loader
from flexpredict.data.augment import augment_batch
from flexpredict.data.sources import Source
from flexpredict.engine import checkpoint, optim
from flexpredict.engine.distributed import Ranks, StopSignal
from flexpredict.engine.encoders import WEIGHTS, describe_encoder, encoder_digest, save_encoder
from flexpredict.files import alone_in, make_writable, write_text
from flexpredict.health.gauges import projection_gauges
from flexpredict.model.vit import Encoder
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.mae import Mae
from flexpredict.progress import say
from flexpredict.run_folder import CONFIG, EVALUATIONS, set_aside
from flexpredict.train.chunks import Chunks
from flexpredict.train.forecast import forecast
from flexpredict.train.gauges import Coverage, Gauges, period
from flexpredict.train.holding import hold, workers_of
from flexpredict.train.monitor import REJECTED, Monitor, Rejections, Waits, peak_memory
from flexpredict.train.resuming import begin_again, changes, check_free, restore
from flexpredict.train.step import step_of, unused_ways, ways_of
from flexpredict.train.track import Track, start_tracker

Probe = Callable[[Encoder], Mapping[str, float]]


class Interrupted(BaseException):
    """A signal asked the run to stop, and its state is saved.

    As KeyboardInterrupt, it is nobody's error: who takes any `Exception` of a damaged image for a
    sign of it must not take this.
    """

    EXIT_CODE = 75  # EX_TEMPFAIL: the same again goes on


@dataclass(frozen=True, slots=True)
class Result:
    run: Path
    steps: int
    seconds: float  # of training, all sessions together
    loss: float | None  # None where nothing was left to do


def train(
    settings: Settings,
    source: Source,
    run: Path,
    ranks: Ranks,
    *,
    resume: bool = False,
    probe: Probe | None = None,
    track: Track | None = None,
) -> Result:
    """Pretrains into a run folder; with `resume`, goes on where the folder's last session ended.

    probe: is shown the target encoder every `probe_every` epochs; what it finds is logged.
    track: who else is told what is logged.
    """
    with ExitStack() as lock:
        return _train(settings, source, run, ranks, lock, resume, probe, track)


def _train(
    settings: Settings,
    source: Source,
    run: Path,
    ranks: Ranks,
    lock: ExitStack,
    resume: bool,
    probe: Probe | None,
    track: Track | None,
) -> Result:
    device = ranks.device
    ranks.by_main(lambda: check_free(run, resume=resume))
    notes = changes(settings, run) if resume else []
    objective = build.build_objective(settings)
    if settings.init is not None and not (resume and checkpoint.newest(run)):
        notes.append(build.start_from(objective, settings, Path(settings.init)))
    sampler = build.build_sampler(settings, objective.encoder.grid)
    chunks = Chunks(sampler, settings.seed, settings.chunk_size, settings.accumulate)
    batches = build.build_batches(settings, source, ranks.rank, ranks.world, beside=chunks)
    per_epoch = batches.order.steps_per_epoch
    schedule = build.build_schedule(settings, per_epoch)
    _check_accumulation(settings, batches.share)
    ranks.by_main(lambda: lock.enter_context(_own_folder(run)))

    compute = step_of(settings, objective, device, ranks.world)
    optimizer = compute.optimizer
    scaler = compute.scaler
    state = None
    if resume:
        state, more = restore(run, settings, len(source), schedule.steps, compute)
        notes += more
        if state is None:
            notes += ranks.by_main(lambda: begin_again(run)) or []
    first = state["step"] if state else 0
    before = state.get("seconds", 0.0) if state else 0.0
    if first == schedule.steps and (run / WEIGHTS).exists():
        return Result(run, first, before, None)
    coverage = Coverage(sampler.grid, state.get("coverage") if state else None)
    gauges = ranks.by_main(lambda: Gauges(settings, source, chunks, objective, compute))
    tracker = ranks.by_main(lambda: start_tracker(track, run, first, settings) if track else None)
    if ranks.is_main:
        for line in (
            *_announce(settings, schedule, source, compute.dtype, ranks),
            *unused_ways(settings, ways_of(settings, objective, device, ranks.world)),
            *notes,
            *forecast(settings, objective, sampler, schedule.steps - first, ranks),
        ):
            say(line)
    passes = schedule.steps / per_epoch
    kept = state.get("held") if state else None
    held, place = hold(batches, settings, ranks, passes, kept)
    about = {"encoder": "target", "settings": settings.digest(), "seed": settings.seed}

    def begin() -> None:
        write_text(run / CONFIG, settings.to_yaml())
        describe_encoder(run, objective.encoders["target"], about)
        (run / WEIGHTS).unlink(missing_ok=True)  # a longer run makes the finished one old

    def write(step: int) -> None:
        assert monitor is not None
        monitor.flush()  # a run that goes on from here has all its lines
        monitor.check_there()
        extra = {
            "images": len(source), "held": place, "scaler": scaler.state_dict(),
            "coverage": coverage.state(), "seconds": time.monotonic() - started,
            "settings": settings.model_dump(mode="json"),
        }  # fmt: skip
        try:
            checkpoint.save(run, step, objective, optimizer, extra, keep=settings.keep_checkpoints)
        except OSError as error:
            raise OSError(
                f"step {step} cannot be saved in {run}: {error.strerror or error}; make room, and "
                f"--resume goes on from what was saved before"
            ) from None

    def save(step: int) -> None:
        _check_finite(objective, step)
        ranks.by_main(partial(write, step))

    def finish() -> None:
        if len(rejections):
            say(f"{len(rejections)} of {len(source)} images could not be used: {run / REJECTED}")
        save_encoder(run, objective.encoders["target"], about | {"step": schedule.steps})
        older = set_aside(run, lambda: {encoder_digest(o) for o in objective.encoders.values()})
        if older:
            say(f"{older} evaluations were of earlier weights: {run / EVALUATIONS / 'earlier'}")

    ranks.by_main(begin)

    rejections = Rejections(run)
    logged_at = time.monotonic()
    started = logged_at - before
    logged_step, value = first, None
    todo = range(first, schedule.steps)
    with StopSignal() as stop, ExitStack() as stack:
        monitor = ranks.by_main(
            lambda: stack.enter_context(
                Monitor(run, settings, first=first, total=schedule.steps, tracker=tracker)
            )
        )
        waits, gauge_every = Waits(), period(settings, schedule.steps)
        stream = loader.load(held, todo, workers=workers_of(settings), timed=waits.over)
        for step, batch in zip(todo, stream, strict=True):
            if batch.failure is None:  # else it is not the images that something is wrong with
                for index, reason in batch.rejected.items():
                    rejections.add(index, source.name(index), reason)
            trouble = batch.failure
            if trouble is None and len(rejections) > settings.most_rejected * len(source):
                trouble = (
                    f"{len(rejections)} of {len(source)} images cannot be used, more than "
                    f"most_rejected={settings.most_rejected:g} allows: {run / REJECTED} says why"
                )
            if (trouble := ranks.first(trouble)) is not None:
                if step == first:
                    raise ValueError(trouble)
                save(step)
                raise RuntimeError(f"{trouble}; step {step} is saved, and --resume goes on from it")
            optim.set_step(optimizer.param_groups, schedule, step)
            objective.predictor.positions.set_progress(step / schedule.steps)
            images = batch.images.to(device, non_blocking=True).contiguous()
            images = augment_batch(images, batch.draws, settings.augment)

            done, last = step + 1, step + 1 == schedule.steps
            look = _is_due(done, settings, per_epoch, schedule.steps)
            gauge = done == 1 or last or done % gauge_every == 0
            log = look or gauge or done % settings.log_every == 0
            views = [chunks.views(plans, device) for plans in batch.beside]
            for plans in batch.beside:
                coverage.add(plans)
            loss, gradients = compute(images, views, schedule.ema(step), measure=log)

            if monitor is not None:
                monitor.advance(done)
            if log:
                value = float(ranks.mean(loss))
                now = time.monotonic()
                seen = (done - logged_step) * settings.batch_size
                metrics: dict[str, Any] = {
                    "step": done,
                    "epoch": round(done / per_epoch, 6),
                    "loss": value,
                    "lr": schedule.learning_rate(step),
                    "weight_decay": schedule.weight_decay(step),
                    "ema": schedule.ema(step),
                    **{name: float(norm) for name, norm in gradients.items()},
                    **_sizes(objective),
                    "images_per_second": round(seen / max(now - logged_at, 1e-9), 2),
                    "data_wait": round(waits.lap() / max(now - logged_at, 1e-9), 4),
                    "memory_gib": peak_memory(device),
                    "seconds": round(now - started, 3),
                }
                finite = math.isfinite(value)
                if monitor is not None:
                    pending = None
                    if gauge and gauges is not None and finite:
                        metrics |= coverage.gauges()
                        pending = gauges.begin()
                    if look and probe is not None and finite:
                        metrics |= probe(objective.encoders["target"])
                    monitor.log(metrics, pending)
                if not finite:
                    kept = checkpoint.newest(run)
                    raise FloatingPointError(
                        f"the loss is {value} at step {done}: start again with a lower lr or a "
                        f"longer warmup; "
                        + (f"what was saved before is {kept}" if kept else "nothing was saved yet")
                    )
                logged_at, logged_step = time.monotonic(), done
            told = ranks.any(stop.received)
            if told or done % settings.checkpoint_every == 0 or done == schedule.steps:
                save(done)
            if told and done < schedule.steps:
                raise Interrupted(
                    f"stopped at step {done} of {schedule.steps}; add --resume to go on"
                )
    ranks.by_main(finish)
    return Result(run, schedule.steps, time.monotonic() - started, value)


def _is_due(done: int, settings: Settings, per_epoch: int, steps: int) -> bool:
    """Whether a probe looks after this many steps: every so many epochs, and at the end.

    All processes log together, though only the first one looks.
    """
    if settings.probe_data is None:
        return False
    every = max(1, round(settings.probe_every * per_epoch))
    return done % every == 0 or done == steps


@contextmanager
def _own_folder(run: Path) -> Iterator[None]:
    """The run's folder, made where there is none; nobody else trains in it meanwhile."""
    make_writable(run)
    with ExitStack() as lock:
        try:
            lock.enter_context(alone_in(run))
        except BlockingIOError:
            raise ValueError(
                f"another process trains in {run}: wait for it, or choose another --out"
            ) from None
        yield


def _check_finite(objective: torch.nn.Module, step: int) -> None:
    """A broken state must not push a sound one out of the kept checkpoints."""
    norms = torch.stack(torch._foreach_norm(list(objective.parameters())))
    if not bool(norms.isfinite().all()):
        raise FloatingPointError(
            f"the weights are not finite after step {step}, which was not saved: start again with "
            f"a lower lr or a longer warmup"
        )


def _sizes(objective: IJepa | Mae) -> dict[str, float]:
    found = projection_gauges(objective.predictor, objective.encoder)
    return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))


def _check_accumulation(settings: Settings, share: int) -> None:
    if share % settings.accumulate:
        raise ValueError(
            f"{share} images per process do not divide into accumulate={settings.accumulate} parts"
        )


def _announce(
    settings: Settings,
    schedule: optim.Schedule,
    source: Source,
    dtype: torch.dtype,
    ranks: Ranks,
) -> list[str]:
    """What was asked and what is used, where the two differ or a person would wonder."""
    processes = "1 process" if ranks.world == 1 else f"{ranks.world} processes"
    lines = [
        f"{len(source):,} images, {schedule.steps:,} steps of {settings.batch_size}, "
        f"{ranks.device.type} in {str(dtype).removeprefix('torch.')}, {processes}"
    ]
    if settings.batch_ratio != 1:
        lines.append(
            f"batch {settings.batch_size} instead of {settings.reference_batch_size}: "
            f"lr {settings.lr:g} is used as {schedule.lr:g}, "
            f"ema {settings.ema:g} as {schedule.ema_start:.6g}"
        )
    return lines


def summary(result: Result) -> Mapping[str, Any]:
    """The result as plain values."""
    return {
        "run": str(result.run),
        "steps": result.steps,
        "seconds": round(result.seconds, 3),
        "loss": result.loss,
    }
