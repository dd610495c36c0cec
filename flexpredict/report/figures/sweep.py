"""Figures 3 and 4 of the paper: what follows from how much noise there is."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexpredict.report.analysis.sweep import Point
from flexpredict.report.figures.style import COLUMN, legend_name, line_style, styled

Series = Mapping[str, Sequence[Point]]


@styled
def over_noise(panels: Mapping[str, Series], unit: str) -> Figure:
    """A panel for each quantity; every seed a dot, means joined, bars of one standard deviation."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(COLUMN * columns, 2.5 * rows))
    drawn = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (title, series) in zip(drawn, panels.items(), strict=False):
        for place, (name, points) in enumerate(series.items()):
            _draw(panel, name, points, place)
        panel.set(title=title, xlabel="noise_std", ylabel=unit)
        panel.grid()
        if len(series) > 1:
            panel.legend()
    for panel in drawn[len(panels) :]:
        panel.set_visible(False)
    return figure


def _draw(panel: Axes, name: str, points: Sequence[Point], place: int) -> None:
    style = line_style(place)
    at = [point.noise_std for point in points]
    panel.errorbar(
        at,
        [point.mean for point in points],
        yerr=[point.std or 0 for point in points],
        capsize=2,
        label=legend_name(name),
        marker="os^Dv"[place % 5],
        markersize=3.5,
        **style,
    )
    for point in points:
        values = list(point.values.values())
        panel.plot(
            [point.noise_std] * len(values), values, ".", ms=3, alpha=0.5, color=style["color"]
        )
