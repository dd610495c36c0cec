"""What a run tells while it runs: JSON lines on disk, and what is said of them."""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import torch

from flexpredict.config import Settings
from flexpredict.files import write_text
from flexpredict.health.diagnosis import FEWEST, GAUGED, diagnose
from flexpredict.progress import Bars, say
from flexpredict.run_folder import METRICS, read_metrics
from flexpredict.train.track import Tracker

try:
    import fcntl
    import resource
except ImportError:  # not on Windows
    fcntl = resource = None  # type: ignore[assignment]

REJECTED = "rejected.jsonl"
_A_WHILE = 3  # gaugings: a run at the edge of a limit is not told at every other one
Item = TypeVar("Item")


def note_of(metrics: Mapping[str, Any]) -> str:
    """What a person wants to see of a line of metrics."""
    loss = "not finite" if metrics["loss"] is None else f"{metrics['loss']:.4f}"
    note = f"loss {loss}, {metrics['images_per_second']:.0f} img/s"
    return note + (f", kNN {metrics['knn']:.1f} %" if "knn" in metrics else "")


class Monitor:
    """Writes metrics.jsonl, tells a tracker, warns of ailments, and shows progress."""

    def __init__(
        self,
        run: Path,
        settings: Settings,
        *,
        first: int,
        total: int,
        tracker: Tracker | None = None,
    ) -> None:
        _drop_lines_after(run, first)
        before = read_metrics(run)
        self._gauged = [line for line in before if GAUGED in line]
        self._newest = deque(before, FEWEST)  # gauged or not
        self._metrics = (run / METRICS).open("a", buffering=1, encoding="utf-8")
        self._run, self._name = run, (name := run.name)
        self._settings, self._tracker = settings, tracker
        found = diagnose(settings, self._known())
        self._warned, self._well = {found.verdict} if found.ailing else set[str](), 0
        self._bars = Bars({name: total})
        self._waiting: tuple[Mapping[str, Any], Future[dict[str, Any]]] | None = None
        self._step = first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Of a run that failed, that is what is to be heard of, and not what failed with it.
            with suppress(Exception) if error is not None else nullcontext():
                self.flush()
        finally:
            self._bars.close()
            if self._tracker is not None:
                self._tracker.close()
            self._metrics.close()

    def advance(self, step: int) -> None:
        """Moves the bar, and writes what has come meanwhile."""
        self._step = step
        if self._waiting is not None and self._waiting[1].done():
            self.flush()
        self._bars.update(self._name, step)

    def log(
        self, metrics: Mapping[str, Any], pending: Future[dict[str, Any]] | None = None
    ) -> None:
        """One line, with at least `step` and `loss`; what is not finite becomes null.

        pending: what is still to come; such a line is written as soon as it has come, and in any
            case before the next one.
        """
        self.flush()
        if pending is None:
            self._write(metrics)
        else:
            self._waiting = metrics, pending

    def flush(self) -> None:
        """Writes what still waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            metrics, pending = waiting
            self._write({**metrics, **pending.result()})

    def check_there(self) -> None:
        """Whether the run's folder is still the one that lines are written to."""
        try:
            there = os.path.samestat(os.fstat(self._metrics.fileno()), (self._run / METRICS).stat())
        except FileNotFoundError:
            there = False
        if not there:
            raise OSError(f"{self._run} was moved or removed while it trained")

    def _write(self, metrics: Mapping[str, Any]) -> None:
        line = {name: _finite(value) for name, value in metrics.items()}
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
        if self._tracker is not None:
            self._tracker.log(line)
        self._step = max(self._step, line["step"])
        self._bars.update(self._name, self._step, note_of(line))
        self._newest.append(line)
        if GAUGED in line:
            self._gauged.append(line)
        if GAUGED in line or len(self._gauged) < FEWEST:  # later on the next gauging is not far
            self._judge(gauged=GAUGED in line)

    def _known(self) -> list[Mapping[str, Any]]:
        """What verdicts need: all gauged lines, and of the others the newest."""
        first = self._newest[0]["step"] if self._newest else 0
        return [*(line for line in self._gauged if line["step"] < first), *self._newest]

    def _judge(self, *, gauged: bool) -> None:
        """Says so, once, when the run has come to look unwell; again after it was well a while."""
        found = diagnose(self._settings, self._known())
        self._well = 0 if found.ailing else self._well + gauged
        if self._well >= _A_WHILE:
            self._warned.clear()
        if found.ailing and found.verdict not in self._warned:
            say(f"warning: {' '.join(found.sentences)}")
            self._warned.add(found.verdict)


class Waits:
    """How long items were waited for."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items in turn, each timed."""
        stream = iter(items)
        while True:
            start = time.monotonic()
            try:
                item = next(stream)
            except StopIteration:
                return
            finally:
                self._seconds += time.monotonic() - start
            yield item

    def lap(self) -> float:
        """Seconds since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def peak_memory(device: torch.device) -> float | None:
    """GiB that this process has held at most, on its GPU if it has one."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**30, 3)
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30, 3)


class Rejections:
    """rejected.jsonl: images that could not be used, each once, whichever process met it."""

    def __init__(self, run: Path) -> None:
        self._path = run / REJECTED
        self._known: set[int] = set()
        self._read = 0  # bytes of the file that are known

    def add(self, index: int, name: str, reason: str) -> None:
        if index in self._known:
            return
        with self._path.open("a+b") as file, _alone(file):
            file.seek(self._read)  # other processes write to it too, and earlier sessions did
            added = file.read()
            for line in added.splitlines():
                with suppress(ValueError):  # one that was cut off in the middle of a write
                    self._known.add(json.loads(line)["index"])
            if index not in self._known:
                self._known.add(index)
                found = {"index": index, "name": name, "reason": reason}
                start = b"\n" if added and not added.endswith(b"\n") else b""
                file.write(start + json.dumps(found).encode() + b"\n")
            self._read = file.tell()

    def __len__(self) -> int:
        return len(self._known)


@contextmanager
def _alone(file: IO[bytes]) -> Iterator[None]:
    """Keeps other processes from writing, where the system can."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield
    file.flush()
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


def _finite(value: Any) -> Any:
    """What JSON can hold; in float16 a scaled gradient may overflow now and then."""
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _drop_lines_after(run: Path, step: int) -> None:
    """Removes what an interrupted run logged after the checkpoint from which it goes on."""
    path = run / METRICS
    if not path.exists():
        return
    kept = [json.dumps(line) + "\n" for line in read_metrics(run) if line["step"] <= step]
    write_text(path, "".join(kept))
