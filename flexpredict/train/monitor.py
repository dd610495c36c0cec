"""What a run tells while it runs: JSON lines on disk, progress for the person watching."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

METRICS, REJECTED = "metrics.jsonl", "rejected.jsonl"


class Monitor:
    """Writes metrics.jsonl and shows progress: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, run: Path, *, first: int, total: int, title: str, active: bool) -> None:
        self._active = active
        self._total = total
        self._started, self._first = time.monotonic(), first
        self._rejected: set[str] = set()
        if not active:
            return
        _drop_lines_after(run / METRICS, first)
        self._metrics = (run / METRICS).open("a", buffering=1)
        self._rejections = run / REJECTED
        if self._rejections.exists():
            lines = self._rejections.read_text().splitlines()
            self._rejected = {json.loads(line)["name"] for line in lines}
        console = Console(stderr=True)
        self._console = console
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            self._task = self._bar.add_task(title, total=total, completed=first, note="")
            self._bar.start()
        else:
            print(f"{title}: steps {first} to {total}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._active:
            if self._bar is not None:
                self._bar.stop()
            self._metrics.close()

    def advance(self, step: int) -> None:
        """Moves the bar."""
        if self._active and self._bar is not None:
            self._bar.update(self._task, completed=step)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """One line, with at least `step` and `loss`."""
        if not self._active:
            return
        self._metrics.write(json.dumps(metrics) + "\n")
        note = f"loss {metrics['loss']:.4f}, {metrics['images_per_second']:.0f} img/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics["step"], note=note)
            return
        done, left = metrics["step"] - self._first, self._total - metrics["step"]
        seconds = (time.monotonic() - self._started) / max(1, done) * left
        # Few lines when nobody watches: about fifty for a whole run.
        if metrics["step"] == self._total or done % max(1, self._total // 50) == 0:
            print(
                f"step {metrics['step']}/{self._total}, {note}, {seconds:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def reject(self, name: str, reason: str) -> None:
        """Names a file that could not be used, once."""
        if self._active and name not in self._rejected:
            self._rejected.add(name)
            with self._rejections.open("a") as file:
                file.write(json.dumps({"name": name, "reason": reason}) + "\n")

    def say(self, text: str) -> None:
        if self._active:
            self._console.print(text, highlight=False, soft_wrap=True)


def _drop_lines_after(path: Path, step: int) -> None:
    """Removes what an interrupted run logged after the checkpoint from which it goes on."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue  # a line that was cut off in the middle of a write
    temporary = path.with_name(f".{path.name}")
    temporary.write_text("".join(kept))
    temporary.replace(path)
