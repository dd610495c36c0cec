"""Several runs at once on one machine, each in a process of its own: small ones do not fill it."""

import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from flexpredict import build
from flexpredict.config import Settings
from flexpredict.data.cores import usable_cores
from flexpredict.data.sources import open_source
from flexpredict.engine.distributed import StopSignal, processes
from flexpredict.train.loop import Interrupted, train
from flexpredict.train.monitor import METRICS, Bars, note_of

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """A run to start or to go on with; its settings name its data."""

    settings: Settings
    run: Path
    steps: int


def train_together(jobs: Sequence[Job], *, device: str | None = None) -> None:
    """Trains all of them; a signal stops and saves all of them."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, usable_cores() // len(jobs))
    workers: list[tuple[Job, SpawnProcess, Connection]] = []
    for job in jobs:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(job, threads, device, theirs))
        worker.start()
        theirs.close()
        workers.append((job, worker, ours))
    bars = Bars({job.run.name: job.steps for job in jobs})
    told = False
    try:
        with StopSignal() as stop:
            while any(worker.is_alive() for _, worker, _ in workers):
                workers[0][1].join(_POLL_SECONDS)
                for job, worker, _ in workers:
                    worker.join(_POLL_SECONDS / len(workers))
                    _show(bars, job)
                    if stop.received and not told:
                        worker.terminate()  # SIGTERM: it saves and leaves
                told = told or stop.received
    finally:
        bars.close()
    for job, worker, ours in workers:
        if worker.exitcode != 0:
            kind, sentence = ours.recv() if ours.poll() else ("RuntimeError", "it died")
            errors = {"ValueError": ValueError, "Interrupted": Interrupted}
            raise errors.get(kind, RuntimeError)(f"{job.run}: {sentence}")


def _work(job: Job, threads: int, device: str | None, parent: Connection) -> None:
    os.setsid()  # Ctrl-C reaches the parent alone, which tells each of us once
    torch.set_num_threads(threads)
    try:
        with processes(device) as ranks:
            assert job.settings.data is not None
            size = build.image_size(job.settings)[0]
            source = open_source(job.settings.data, image_size=size)
            train(job.settings, source, job.run, ranks, resume=True, show=False)
    except Exception as error:
        parent.send((type(error).__name__, str(error)))
        raise SystemExit(1) from None


def _show(bars: Bars, job: Job) -> None:
    """Progress from what the run wrote: the last whole line of its metrics."""
    path = job.run / METRICS
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().split(b"\n")[:-1]
    if lines and lines[-1].startswith(b"{"):
        metrics = json.loads(lines[-1])
        bars.update(job.run.name, metrics["step"], note_of(metrics))
