"""What a run tells while it runs: JSON lines on disk, progress for the person watching."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

METRICS, REJECTED = "metrics.jsonl", "rejected.jsonl"
_PLAIN_LINES = 40  # for a whole run, where nobody watches


class Bars:
    """Progress of one or more runs: live bars on a terminal, a few plain lines elsewhere."""

    def __init__(self, totals: Mapping[str, int], *, unit: str = "step ") -> None:
        self._totals = totals
        self._unit = unit
        self._started = time.monotonic()
        self._first: dict[str, int] = {}
        self._next_line = dict.fromkeys(totals, 0)
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
            # The last step always gets a line, and none comes after it.
            following = min(step + max(1, total // _PLAIN_LINES), total)
            self._next_line[name] = following if step < total else total + 1
            pace = (time.monotonic() - self._started) / max(1, step - first)
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
    note = f"loss {metrics['loss']:.4f}, {metrics['images_per_second']:.0f} img/s"
    return note + (f", kNN {metrics['knn']:.1f} %" if "knn" in metrics else "")


class Monitor:
    """Writes metrics.jsonl, and shows progress if asked."""

    def __init__(self, run: Path, *, name: str, first: int, total: int, show: bool) -> None:
        _drop_lines_after(run / METRICS, first)
        self._metrics = (run / METRICS).open("a", buffering=1)
        self._name = name
        self._bars = Bars({name: total}) if show else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.close()
        self._metrics.close()

    def advance(self, step: int) -> None:
        """Moves the bar."""
        if self._bars is not None:
            self._bars.update(self._name, step)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """One line, with at least `step` and `loss`."""
        self._metrics.write(json.dumps(metrics, allow_nan=False) + "\n")
        if self._bars is not None:
            self._bars.update(self._name, metrics["step"], note_of(metrics))


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


def _drop_lines_after(path: Path, step: int) -> None:
    """Removes what an interrupted run logged after the checkpoint from which it goes on."""
    if not path.exists():
        return
    kept = [json.dumps(line) + "\n" for line in _whole_lines(path) if line["step"] <= step]
    temporary = path.with_name(f".{path.name}")
    temporary.write_text("".join(kept))
    temporary.replace(path)


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """All lines but one that was cut off in the middle of a write."""
    lines = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines
