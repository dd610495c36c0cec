"""What the doctor says of runs, for a page."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flexpredict.health.diagnosis import diagnose
from flexpredict.health.reference import reference_bands, reference_of
from flexpredict.report.figures.curves import Band
from flexpredict.report.runs import Run


class Healthy(NamedTuple):
    """What healthy runs showed: by gauge, and which runs they are, in words."""

    bands: Mapping[str, Band]
    words: str


def healthy_runs(runs: Sequence[Run]) -> Healthy | None:
    """Those that are like the first of these of which any are known."""
    kinds = {run.name: reference_of(run.settings, run.steps) for run in runs if run.steps}
    for run in runs:
        if run.steps and (words := kinds[run.name]):
            known = reference_bands(run.settings, run.steps)
            bands = {
                gauge: Band(*(part.tolist() for part in (band.share * run.steps, *band[1:])))
                for gauge, band in known.items()
            }
            alike = [
                one.name for one in runs if kinds.get(one.name) == words and one.steps == run.steps
            ]
            if len(alike) < len(runs):
                words += f", like {', '.join(alike)} alone"
            return Healthy(bands, words)
    return None


def verdict_of(run: Run) -> str:
    return " ".join(diagnose(run.settings, run.metrics).sentences)
