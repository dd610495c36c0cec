"""Figures and pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flexpredict.api.pretraining import Data
from flexpredict.engine.distributed import pick_device
from flexpredict.model.masking import MaskSampler
from flexpredict.progress import Tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flexpredict.report.gallery import Gallery
    from flexpredict.report.runs import Run


def figures(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "figures",
    *,
    data: Data | None = None,
    only: str | Sequence[str] | None = None,
    formats: Sequence[str] = ("png", "svg"),
    device: str | None = None,
) -> "Gallery":
    """Draws the paper's figures and more from runs, and writes the numbers behind them.

    data: images for the figures that need some; by default those of the first run that says which.
    only: a figure's name, or several; by default all that these runs allow. `skipped` says why one
        is missing.
    """
    from flexpredict.report import gallery  # nobody else has to wait for matplotlib

    opened = _read_runs(runs, device)
    gallery.check_folder(Path(out), formats)
    found = _draw(opened, data, [only] if isinstance(only, str) else only)
    gallery.write_figures(found, opened, Path(out), formats)
    return found


def draw_coverage(samplers: Mapping[str, MaskSampler]) -> "Figure":
    """How often mask samplers show each patch, and how often they ask for it: a row for each."""
    from flexpredict.report.analysis.masks import coverage
    from flexpredict.report.figures.masks import mask_coverage

    return mask_coverage({name: coverage(sampler) for name, sampler in samplers.items()})


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    data: Data | None = None,
    device: str | None = None,
) -> Path:
    """One self-contained page about runs, side by side; gives its path.

    out: by default report.html in the folder of a single run, else in the current folder.
    data: as for `figures`.
    """
    from flexpredict.report import run_page
    from flexpredict.report.judged import healthy_runs, verdict_of

    opened = _read_runs(runs, device)
    folder = opened[0].path if len(opened) == 1 else Path()
    path = folder / "report.html" if out is None else Path(out)
    run_page.check_page(path)
    drawn = _draw(opened, data, None)
    verdicts = {run.name: verdict_of(run) for run in opened}
    run_page.write_run_page(path, opened, drawn, healthy=healthy_runs(opened), verdicts=verdicts)
    return path


def _read_runs(runs: str | Path | Sequence[str | Path], device: str | None) -> list["Run"]:
    from flexpredict.report.runs import read_runs

    several = [runs] if isinstance(runs, str | Path) else runs
    return read_runs([Path(run) for run in several], str(pick_device(device)))


def _draw(runs: list["Run"], data: Data | None, only: Sequence[str] | None) -> "Gallery":
    from flexpredict.report.gallery import draw_figures
    from flexpredict.report.images import find_images

    images = find_images(runs, data, progress=Tally("scenes"))
    return draw_figures(runs, images, only, progress=Tally("figures"))
