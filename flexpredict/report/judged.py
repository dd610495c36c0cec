"""What the doctor says of runs, for a page."""

from collections.abc import Sequence

from flexpredict.health.diagnosis import diagnose
from flexpredict.health.reference import reference_bands
from flexpredict.report.figures.curves import Band
from flexpredict.report.runs import Run


def bands_of(runs: Sequence[Run]) -> dict[str, Band]:
    """What healthy runs showed that are like the first of these of which any are known."""
    for run in runs:
        known = reference_bands(run.settings, run.steps)
        if known and run.steps:
            return {
                gauge: Band(*(part.tolist() for part in (band.share * run.steps, *band[1:])))
                for gauge, band in known.items()
            }
    return {}


def verdict_of(run: Run) -> str:
    return " ".join(diagnose(run.settings, run.metrics).sentences)
