"""What the folder of a run holds beside its weights, as plain values."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

CONFIG, METRICS, EVALUATIONS = "config.yaml", "metrics.jsonl", "evaluations"
_OF_A_LINE = {"step", "loss"}
_OF_AN_EVALUATION = {"task", "method", "protocol", "encoder", "labels", "result"}


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, but for such as were cut off in the middle of a write."""
    path, lines = run / METRICS, []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            if isinstance(found := json.loads(line), dict) and found.keys() >= _OF_A_LINE:
                lines.append(found)
    return lines


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """Everything that was found about a run."""
    found = []
    for path in sorted((run / EVALUATIONS).glob("*.json")):
        try:
            one = json.loads(path.read_text())
        except ValueError:
            one = None
        known = isinstance(one, dict) and one.keys() >= _OF_AN_EVALUATION
        if not (known and isinstance(one["result"], dict)):
            raise ValueError(f"{path} is no evaluation: evaluate again, or remove it")
        found.append(one)
    return found
