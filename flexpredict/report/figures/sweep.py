"""Figures 3 and 4 of the paper: what follows from how much noise there is."""

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from flexpredict.report.analysis.sweep import Point
from flexpredict.report.figures.style import COLUMN, PAGE, legend_name, line_style, styled

Series = Mapping[str, Sequence[Point]]
_LETTER, _MARK, _LINE = 0.055, 0.45, 0.15  # inches of a legend: a letter, what is beside, a row


@styled
def over(
    panels: Mapping[str, Series], unit: str, along: str = "noise_std", bars: str = ""
) -> Figure:
    """A panel for each quantity; every seed a dot, means joined, bars of one standard deviation.

    bars: what stands below about them.
    """
    columns = min(2 if len(panels) < 5 else 3, len(panels))
    rows = -(-len(panels) // columns)
    wide = COLUMN * columns if columns < 3 else PAGE
    figure = Figure(figsize=(wide, (2.5 if columns < 3 else 2.1) * rows))
    drawn = figure.subplots(rows, columns, squeeze=False).ravel()
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    most = int((wide - _MARK) / _LETTER)  # letters of a row
    labels = {name: textwrap.fill(legend_name(name), most) for name in names}
    shared = any(len(series) == len(names) for series in panels.values())
    for place, (panel, (title, series)) in enumerate(zip(drawn, panels.items(), strict=False)):
        for name, points in series.items():
            _draw(panel, labels[name], points, names.index(name))  # one look in all panels
        panel.set(title=title, xlabel=along, ylabel=unit if place % columns == 0 else "")
        _spread(panel, [point.at for points in series.values() for point in points])
        panel.grid()
        if len(series) > 1 and not shared:
            panel.legend()
    for panel in drawn[len(panels) :]:
        panel.set_visible(False)
    if bars:
        figure.supxlabel(bars, fontsize=7)
    if shared and len(names) > 1:  # above, where no curve can run into it
        full = max(
            drawn[: len(panels)], key=lambda panel: len(panel.get_legend_handles_labels()[1])
        )
        each = _LETTER * max(map(len, labels.values())) + _MARK
        abreast = max(1, min(len(names), int(wide / each)))
        lines = -(-len(names) // abreast)
        if abreast == 1:
            lines = sum(label.count("\n") + 1 for label in labels.values())
        figure.set_figheight(figure.get_figheight() + _LINE * (lines - 1))
        figure.legend(*full.get_legend_handles_labels(), loc="outside upper center", ncols=abreast)
    return figure


def _spread(panel: Axes, values: Sequence[float]) -> None:
    """Values of several decades are given equal room, and zero a place to their left."""
    some = sorted({value for value in values if value > 0})
    if len(some) > 1 and some[-1] > 20 * some[0]:
        panel.set_xscale("symlog", linthresh=some[0], linscale=0.5)
        panel.set_xlim(left=-some[0] / 3 if 0 in values else some[0] / 1.3, right=some[-1] * 1.3)
        decades = [10.0**power for power in range(-9, 10) if some[0] <= 10.0**power <= some[-1]]
        panel.set_xticks([0, *decades] if 0 in values else decades)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.xaxis.set_minor_locator(NullLocator())


def _draw(panel: Axes, label: str, points: Sequence[Point], place: int) -> None:
    style = line_style(place)
    if len(points) == 1:  # what the others are to be seen against
        panel.axhline(points[0].mean, linewidth=0.8, color=style["color"], linestyle=":")
    panel.errorbar(
        [point.at for point in points],
        [point.mean for point in points],
        yerr=[point.std or 0 for point in points],
        capsize=2,
        label=label,
        marker="os^Dv"[place % 5],
        markersize=3.5,
        **style,
    )
    for point in points:
        values = list(point.values.values())
        panel.plot([point.at] * len(values), values, ".", ms=3, alpha=0.5, color=style["color"])
