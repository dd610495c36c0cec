"""Runs as points of a sweep over noise_std: what Figures 3 and 4 are drawn from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flexpredict.config import WITHOUT_EFFECT
from flexpredict.report.runs import Run, differing

_NAMES = {"stop": "learned covariance", "fixed": "fixed covariance", "learned": "learned positions"}
_OF_A_SWEEP = {"positions", "noise_std", "seed"}
_FEW = 2  # settings that fit into a name


@dataclass(frozen=True, slots=True)
class Point:
    """What runs of one noise_std, or whatever is swept, have in common; several are seeds."""

    at: float
    values: dict[str, float]  # by run

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values())))

    @property
    def std(self) -> float | None:
        """Over seeds, where there are several."""
        several = list(self.values.values())
        return float(np.std(several, ddof=1)) if len(several) > 1 else None


def series(runs: Sequence[Run], values: Mapping[str, float]) -> dict[str, list[Point]]:
    """Points of each kind of noise, by rising noise_std; runs without noise belong to all kinds.

    Runs that differ in another setting than those of a sweep are series of their own, which say its
    value; where there are many such settings, only what most runs do not have.
    """
    others = [
        name for name in differing(runs) if name not in _OF_A_SWEEP and name not in WITHOUT_EFFECT
    ]
    usual = {
        name: Counter(str(getattr(run.settings, name)) for run in runs).most_common(1)[0][0]
        for name in (others if len(others) > _FEW else ())
    }
    found: dict[tuple[str, ...], dict[str, dict[float, dict[str, float]]]] = {}
    for run in runs:
        if run.name in values:
            values_of = {name: getattr(run.settings, name) for name in others}
            group = tuple(
                f"{name}={x}"
                for name, x in values_of.items()
                if (str(x) != usual[name] if name in usual else x is not None)
            )
            kinds = found.setdefault(group, {})
            points = kinds.setdefault(_kind(run), {})
            points.setdefault(run.noise_std, {})[run.name] = values[run.name]
    named = {}
    for group, kinds in found.items():
        still = kinds.pop("no noise", {})
        for kind in kinds or ["no noise"]:
            points = still | kinds.get(kind, {})
            named[", ".join([kind, *group])] = [Point(std, points[std]) for std in sorted(points)]
    return named


def _kind(run: Run) -> str:
    """What a line of the figure is called; those of the paper by its words."""
    positions = run.settings.positions
    if run.noise_std == 0 and positions != "learned":
        return "no noise"
    return _NAMES.get(positions, f"{positions} noise")
