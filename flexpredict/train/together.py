"""Several runs at once on one machine, each in a process of its own: small ones do not fill it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexpredict.config import Settings
from flexpredict.data.cores import threads_each
from flexpredict.engine.distributed import StopSignal
from flexpredict.progress import Bars
from flexpredict.run_folder import METRICS
from flexpredict.train.loop import Interrupted
from flexpredict.train.monitor import note_of

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """A run to start or to go on with; its settings name its data and its steps."""

    settings: Settings
    run: Path


def train_together(jobs: Sequence[Job], *, device: str | None = None) -> None:
    """Trains all of them; a signal stops and saves all of them, and so does the failure of one."""
    threads = str(threads_each(len(jobs)))
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            _start(job, Path(folder) / str(number), threads, device)
            for number, job in enumerate(jobs)
        ]
        bars = Bars({job.run.name: job.settings.steps or 0 for job in jobs})
        told = False
        try:
            with StopSignal() as stop:
                while any(worker.poll() is None for worker, _ in workers):
                    for job, (worker, _) in zip(jobs, workers, strict=True):
                        _wait(worker)
                        _show(bars, job)
                    failed = any(worker.poll() for worker, _ in workers)
                    if (stop.received or failed) and not told:
                        told = True
                        for worker, _ in workers:
                            worker.terminate()  # it saves and leaves
        finally:
            bars.close()
        codes = [worker.returncode for worker, _ in workers]
        for code, (_, log) in zip(codes, workers, strict=True):
            if code not in (0, Interrupted.EXIT_CODE, -15):
                sentence = _last_line(log) or f"a run ended with code {code}"
                raise (ValueError if code == 2 else RuntimeError)(sentence)
        if any(codes):
            raise Interrupted("stopped, and both runs are saved; the same command goes on")


def _start(
    job: Job, scratch: Path, threads: str, device: str | None
) -> tuple[subprocess.Popen[bytes], Path]:
    """`flexpredict pretrain` as anybody would call it: no code of the caller runs in it."""
    recipe, log = scratch.with_suffix(".yaml"), scratch.with_suffix(".log")
    recipe.write_text(job.settings.to_yaml(), "utf-8")
    command = [sys.executable, "-m", "flexpredict", "pretrain", "--recipe", str(recipe), "--resume"]
    command += ["--out", str(job.run), *(["--device", device] if device else [])]
    with log.open("wb") as errors:
        worker = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | {"OMP_NUM_THREADS": threads},
            start_new_session=True,  # Ctrl-C reaches us alone, and we tell each of them once
        )
    return worker, log


def _wait(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


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


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("flexpredict: ") if lines else ""
