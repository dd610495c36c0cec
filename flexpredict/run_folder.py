"""What the folder of a run holds beside its weights, as plain values."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

CONFIG, METRICS, EVALUATIONS = "config.yaml", "metrics.jsonl", "evaluations"
_EARLIER = "earlier"
_OF_AN_EVALUATION = {"task", "method", "protocol", "encoder", "labels", "result"}


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, but for such as were cut off in the middle of a write.

    Or damaged otherwise: a step is a whole number, a loss a number, or null where it is not finite.
    """
    path, lines = run / METRICS, []
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            found = json.loads(line)
            if (
                isinstance(found, dict)
                and type(found.get("step")) is int
                and isinstance(found.get("loss", ""), float | int | None)
            ):
                lines.append(found)
    return lines


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """Everything that was found about a run."""
    found = []
    for path in sorted((run / EVALUATIONS).glob("*.json")):
        try:
            one = json.loads(path.read_text("utf-8"))
        except ValueError:
            one = None
        known = isinstance(one, dict) and one.keys() >= _OF_AN_EVALUATION
        if not (known and isinstance(one["result"], dict) and _are_numbers(one["result"])):
            raise ValueError(f"{path} is no evaluation: evaluate again, or remove it")
        found.append(one)
    return found


def _are_numbers(result: dict[str, Any]) -> bool:
    return not any(isinstance(value, str | bool) for value in result.values())


def set_aside(run: Path, digests: Callable[[], set[str]]) -> int:
    """Moves evaluations of weights that the run no longer has to evaluations/earlier; how many.

    digests: of the weights that it has; asked for where there are evaluations.
    """
    older: list[tuple[Path, str]] = []
    current: set[str] | None = None
    for path in sorted((run / EVALUATIONS).glob("*.json")):
        with suppress(ValueError, OSError):
            one = json.loads(path.read_text("utf-8"))
            if isinstance(one, dict) and one.get("encoder") in ("target", "context"):
                current = digests() if current is None else current
                if (digest := one.get("checkpoint")) not in current:
                    older.append((path, str(digest)))
    for path, digest in older:
        folder = path.parent / _EARLIER
        folder.mkdir(exist_ok=True)
        path.replace(folder / f"{path.stem}-{digest[:8]}.json")
    return len(older)


def earlier_evaluations(run: Path) -> int:
    """How many there are of weights that the run no longer has."""
    return len(list((run / EVALUATIONS / _EARLIER).glob("*.json")))
