"""Progress for the person watching: live bars on a terminal, a few plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
