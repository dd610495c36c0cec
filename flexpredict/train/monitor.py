"""What a run tells while it runs: JSON lines on disk, progress for the person watching."""

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flexpredict.config import Settings
from flexpredict.files import write_text
from flexpredict.health.diagnosis import GAUGED, diagnose
from flexpredict.run_folder import METRICS, read_metrics
from flexpredict.train.track import Tracker

try:
    import fcntl
    import resource
except ImportError:  # not on Windows
    fcntl = resource = None  # type: ignore[assignment]

REJECTED = "rejected.jsonl"
Item = TypeVar("Item")
_PLAIN_LINES, _PLAIN_SECONDS = 40, 5.0  # at most for a whole run, and between two of them


class Bars:
    """Progress of one or more runs: live bars on a terminal, a few plain lines elsewhere."""

    def __init__(self, totals: Mapping[str, int], *, unit: str = "step ") -> None:
        self._totals = totals
        self._unit = unit
        self._started = time.monotonic()
        self._first: dict[str, int] = {}
        self._next_line = dict.fromkeys(totals, 0)
        self._last_line = dict.fromkeys(totals, -math.inf)
        self._live: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            self._tasks = {
                name: self._live.add_task(name, total=total, note="")
                for name, total in totals.items()
            }
            self._live.start()

    def update(self, name: str, step: int, note: str | None = None) -> None:
        total, first = self._totals[name], self._first.setdefault(name, step)
        if self._live is not None:
            fields = {} if note is None else {"note": note}
            self._live.update(self._tasks[name], completed=step, **fields)  # type: ignore[arg-type]
        elif note is not None and step >= self._next_line[name]:
            now = time.monotonic()
            if step < total and now - self._last_line[name] < _PLAIN_SECONDS:
                return
            # The last step always gets a line, and none comes after it.
            following = min(step + max(1, total // _PLAIN_LINES), total)
            self._next_line[name] = following if step < total else total + 1
            self._last_line[name] = now
            pace = (now - self._started) / max(1, step - first)
            left = f"{pace * (total - step):.0f} s left" if step > first else ""
            parts = [f"{name}: {self._unit}{step}/{total}", note, left]
            say(", ".join(part for part in parts if part))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class Tally:
    """Progress of work that is counted: called with how many are done, and of how many."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bars: Bars | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bars is None:  # nothing is shown where nothing is to be done
            self._bars = Bars({self._name: total}, unit="")
        self._bars.update(self._name, done, "")
        if done >= total:
            self._bars.close()
            self._bars = None


def say(text: str) -> None:
    """A line for the person watching."""
    print(text, file=sys.stderr, flush=True)


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
        self._gauged = [line for line in read_metrics(run) if GAUGED in line]
        self._metrics = (run / METRICS).open("a", buffering=1)
        self._name = name = run.name
        self._settings, self._tracker = settings, tracker
        self._verdict = diagnose(settings, self._gauged).verdict
        self._bars = Bars({name: total})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.close()
        if self._tracker is not None:
            self._tracker.close()
        self._metrics.close()

    def advance(self, step: int) -> None:
        """Moves the bar."""
        self._bars.update(self._name, step)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """One line, with at least `step` and `loss`; what is not finite becomes null."""
        line = {name: _finite(value) for name, value in metrics.items()}
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
        if self._tracker is not None:
            self._tracker.log(line)
        self._bars.update(self._name, line["step"], note_of(line))
        if GAUGED in line:
            self._gauged.append(line)
            self._judge()

    def _judge(self) -> None:
        """Says so, once, when the run has come to look unwell."""
        found = diagnose(self._settings, self._gauged)
        if found.ailing and found.verdict != self._verdict:
            say(f"warning: {' '.join(found.sentences)}")
        self._verdict = found.verdict


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
