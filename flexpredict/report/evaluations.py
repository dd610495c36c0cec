"""Evaluations of several runs, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexpredict.report.runs import Run

_OTHERS = {"ridge": "by ridge", "mean_box_iou": "the mean box"}
_MOVED = "accuracy_"  # of shifts


def by_label(runs: Sequence[Run]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """What was evaluated -> run -> the evaluation as it stands in its file."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        for one in run.evaluations:
            rows.setdefault(label(one), {})[run.name] = one
    return dict(sorted(rows.items()))


def label(one: Mapping[str, Any]) -> str:
    """What was done, in words: equal for what can be compared."""
    parts = [f"{one['task']}, {one['method']}"]
    parts += [one["protocol"]] if one["protocol"] != "default" else []
    parts += [f"labels {one['labels']}"] if one.get("labels", "all") != "all" else []
    parts += [f"{one['encoder']} encoder"] if one["encoder"] != "target" else []
    parts += [f"{key}={value}" for key, value in sorted(one.get("variant", {}).items())]
    parts += [one["data"]] if one.get("data") else []
    return ", ".join(parts)


def score(one: Mapping[str, Any]) -> float | None:
    """The number that counts, in percent: accuracy, J&F of videos, IoU of boxes."""
    result = one["result"]
    return next((result[key] for key in ("accuracy", "J&F", "iou") if key in result), None)


def others(one: Mapping[str, Any]) -> dict[str, float]:
    """What was found beside it, in percent, by what it is."""
    return {
        _OTHERS.get(key) or f"moved by {key.removeprefix(_MOVED)} px": value
        for key, value in one["result"].items()
        if key in _OTHERS or key.startswith(_MOVED)
    }
