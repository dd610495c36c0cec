"""The gauges of runs that we know: healthy ones, several seeds of each, and each kind of failure.

They come with the package as bands (health/reference.json), packed by benchmarks/ailments.py.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexpredict.config import Settings
from flexpredict.files import write_text
from flexpredict.health.diagnosis import GAUGED, progress_of, series, steps_of

PACKED = Path(__file__).with_name("reference.json")
# What a person looks at first.
SHOWN = (
    "loss", "fixed_loss", "rankme_target", "rankme_context", "spread_target", "cosine_target",
    "encoder_distance", "norm_A", "norm_mask_token", "norm_gamma", "noise_over_signal",
    "noise_over_position", "gradient_norm", "data_wait",
)  # fmt: skip
_MOST_POINTS = 100
# A run is compared with a known one that has the same of these.
_ALIKE = ("objective", "model", "patch_size", "image_size", "positions", "form")
_FAINT = 0.01  # less noise than this is as good as this
_LEFT_OUT = {"step", "epoch", "seconds", "lr", "weight_decay", "ema", "images_per_second"}

Numbers = NDArray[np.float64]


class Band(NamedTuple):
    """A gauge over a run, in several seeds: smallest, median and largest value."""

    share: Numbers  # of the run's steps that are done, ascending from 0 to 1
    low: Numbers
    mid: Numbers
    high: Numbers

    def at(self, share: float) -> tuple[float, float]:
        """Lowest and highest at a share of the run."""
        low, high = (float(np.interp(share, self.share, x)) for x in (self.low, self.high))
        return low, high


def reference_bands(of: Settings | str, steps: int | None = None) -> dict[str, Band]:
    """Bands of healthy runs by the name of the gauge, or none where there are no such runs.

    of: the settings of a run, for runs of the same model, patches and positions; or a name among
        `reference_names()`, failures included.
    steps: of the run in all, where its settings say epochs: of several that are alike those of
        about this length are taken.
    """
    name = of if isinstance(of, str) else _name_of(of, steps)
    if name is None:
        return {}
    if name not in _known():
        raise ValueError(f"there is no reference {name!r}: choose one of {reference_names()}")
    known = _known()[name]
    share = np.array(known["share"])
    return {
        gauge: Band(share, *(np.array(rows, dtype=float) for rows in values))
        for gauge, values in known["gauges"].items()
    }


def reference_of(settings: Settings, steps: int | None = None) -> str | None:
    """Which healthy runs a run is compared with, in words; None where there are none like it."""
    name = _name_of(settings, steps)
    if name is None:
        return None
    known = _known()[name]
    runs = "one run" if known["seeds"] == 1 else f"{known['seeds']} runs"
    return f"{runs} of {known['steps']:,} steps ({name})"


class Reading(NamedTuple):
    gauge: str
    first: float
    now: float | None  # None where it is no longer finite
    healthy: tuple[float, float] | None  # lowest and highest of runs alike, as far as they were


def readings(settings: Settings, lines: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """What the gauges of a run say, beside those of healthy runs at the same share of theirs."""
    bands = reference_bands(settings, steps_of(settings, lines[-1]))
    share = progress_of(settings, lines[-1])
    found = []
    for name in SHOWN:
        if values := series(lines, name):
            healthy = bands[name].at(share) if name in bands else None
            now = None if lines[-1].get(name, 0.0) is None else values[-1]
            found.append(Reading(name, values[0], now, healthy))
    return found


def reference_names() -> dict[str, str]:
    """Names of what is known, and the verdict on each."""
    return {name: known["verdict"] for name, known in _known().items()}


def pack(runs: Sequence[tuple[Settings, Sequence[Mapping[str, Any]]]], verdict: str) -> Any:
    """Runs of one kind in several seeds as plain values: every number that their lines have."""
    settings = runs[0][0]
    gauged = [[line for line in lines if GAUGED in line] for _, lines in runs]
    points = min(_MOST_POINTS, max(map(len, gauged)))
    share = np.linspace(0, 1, points)
    names = [
        name
        for name, value in gauged[0][-1].items()
        if isinstance(value, float) and name not in _LEFT_OUT
    ]
    gauges = {}
    for name in names:
        curves = [_curve(lines, name, share) for lines in gauged]
        found = np.array([curve for curve in curves if curve is not None])
        bounds = (found.min(axis=0), np.median(found, axis=0), found.max(axis=0))
        gauges[name] = [[float(f"{x:.4g}") for x in bound] for bound in bounds]
    alike = {key: settings.model_dump(mode="json")[key] for key in _ALIKE}
    return {
        "verdict": verdict,
        "alike": alike,
        "noise_std": settings.noise_std,
        "steps": gauged[0][-1]["step"],
        "seeds": len(runs),
        "share": [round(float(x), 4) for x in share],
        "gauges": gauges,
    }


def write(packed: Mapping[str, Any]) -> None:
    write_text(PACKED, json.dumps(packed, separators=(",", ":")) + "\n")


def _curve(lines: Sequence[Mapping[str, Any]], name: str, share: Numbers) -> Numbers | None:
    known = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    if not known:
        return None
    steps, values = np.array(known, dtype=float).T
    return np.interp(share * lines[-1]["step"], steps, values)


def _name_of(settings: Settings, steps: int | None = None) -> str | None:
    """Of healthy references that are alike, the one of about as many steps, else the longest.

    And of about as much noise: twice as much is as far away as twice as long.
    """
    own = settings.model_dump(mode="json")
    alike = {
        name: known
        for name, known in _known().items()
        if known["verdict"] == "healthy" and all(own[k] == v for k, v in known["alike"].items())
    }
    if not alike:
        return None
    wanted = steps or settings.steps or max(known["steps"] for known in alike.values())

    def apart(name: str) -> float:
        known = alike[name]
        far = abs(math.log(known["steps"] / wanted))
        if settings.stochastic:
            noises = (max(std, _FAINT) for std in (known["noise_std"], settings.noise_std))
            far += abs(math.log(next(noises) / next(noises)))
        return far

    return min(alike, key=apart)


@functools.cache
def _known() -> dict[str, Any]:
    return dict(json.loads(PACKED.read_text("utf-8")))
