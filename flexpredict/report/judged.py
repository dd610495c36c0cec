"""What the doctor says of runs, for a page."""

from collections.abc import Sequence

from flexpredict.health.diagnosis import diagnose
from flexpredict.health.reference import reference_bands
from flexpredict.report.figures.curves import Band
from flexpredict.report.run_page import Verdict
from flexpredict.report.runs import Run


def bands_of(runs: Sequence[Run]) -> dict[str, Band]:
    """What healthy runs showed that are like the first of these of which any are known."""
    for run in runs:
        known = reference_bands(run.settings)
        if known and run.steps:
            return {
                gauge: Band(*(part.tolist() for part in (band.share * run.steps, *band[1:])))
                for gauge, band in known.items()
            }
    return {}


def verdict_of(run: Run) -> Verdict:
    found = diagnose(run.settings, run.metrics)
    parts = [f"{found.sentence}."]
    if found.evidence:
        parts.append(f"Seen: {'; '.join(found.evidence)}.")
    if found.remedy:
        parts.append(f"What usually helps: {found.remedy}")
    if found.unjudged:
        parts.append(f"Its metrics do not tell whether it is {', '.join(found.unjudged)}.")
    return Verdict(" ".join(parts))
