"""Curves over steps, and bars."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, SymmetricalLogLocator
from numpy.typing import NDArray

from flexpredict.report.figures.style import (
    COLOURS,
    REFERENCE,
    legend_name,
    line_style,
    plain_logarithm,
    styled,
)

Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl
_NARROW = 3.4  # inches
_PARTS = 60  # of a curve, over which means are taken
_FAR = 100  # times as large as all others: a run that would press them onto the axis


class Band(NamedTuple):
    """What healthy runs showed: drawn behind a curve."""

    steps: Sequence[float]
    low: Sequence[float]
    mid: Sequence[float]
    high: Sequence[float]


@styled
def curves(runs: Mapping[str, Lines], keys: Mapping[str, str], *, smooth: bool = False) -> Figure:
    """One panel for each metric (key -> title), one line for each run."""
    figure = Figure(figsize=(_NARROW * len(keys), 2.5))
    panels = figure.subplots(1, len(keys), squeeze=False)[0]
    for panel, (key, title) in zip(panels, keys.items(), strict=True):
        _draw(panel, runs, key, title, smooth, {}, None)
    panels[0].legend()
    return figure


@styled
def curve(
    runs: Mapping[str, Lines],
    key: str,
    *,
    smooth: bool = False,
    styles: Mapping[str, Mapping[str, Any]],
    band: Band | None = None,
) -> Figure:
    """One metric of several runs, over the reference band if there is one."""
    figure = Figure(figsize=(_NARROW, 2.2))
    _draw(figure.subplots(), runs, key, key, smooth, styles, band)
    return figure


@styled
def profile(
    runs: Mapping[str, Lines], key: str, *, styles: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """A metric that is a list, as it was last: by block of targets, by row of the grid."""
    figure = Figure(figsize=(_NARROW, 2.2))
    panel = figure.subplots()
    for place, (name, lines) in enumerate(runs.items()):
        found = (line[key] for line in reversed(lines) if line.get(key) is not None)
        values: list[float | None] = next(found, [])
        style = styles.get(name) or line_style(place)
        heights = np.array(values, dtype=float)  # None, where there is none, is a gap
        panel.plot(range(1, len(values) + 1), heights, marker=".", label=legend_name(name), **style)
    panel.set_title(f"{key}, last")
    panel.set_xlabel(key.rpartition("_")[2])
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid()
    return figure


def _draw(
    panel: Axes,
    runs: Mapping[str, Lines],
    key: str,
    title: str,
    smooth: bool,
    styles: Mapping[str, Mapping[str, Any]],
    band: Band | None,
) -> None:
    sizes = []  # of what is drawn
    if band is not None:
        sizes.append(max(map(abs, band.high)))
        panel.fill_between(band.steps, band.low, band.high, color=REFERENCE, alpha=0.18, lw=0)
        panel.plot(band.steps, band.mid, color=REFERENCE, linewidth=0.8)
    for place, (name, lines) in enumerate(runs.items()):
        style = styles.get(name) or line_style(place)
        known = [line for line in lines if line.get(key) is not None]
        steps = np.array([line["step"] for line in known])
        values = np.array([line[key] for line in known], dtype=float)
        if smooth and (width := mean_width(len(values))) > 1:
            panel.plot(steps, values, color=style["color"], alpha=0.25, linewidth=0.6)
            steps, values = _running_mean(steps, width), _running_mean(values, width)
        if len(values):
            sizes.append(float(np.abs(values).max()))
        marker = "." if len(values) < 12 else None
        panel.plot(steps, values, label=legend_name(name), marker=marker, **style)
    if len(sizes) > 1 and max(sizes) > _FAR * min(sizes) > 0:
        panel.set_yscale("symlog", linthresh=min(sizes))
        every = SymmetricalLogLocator(base=10, linthresh=min(sizes))
        every.set_params(numticks=5)
        panel.yaxis.set_major_locator(every)
        plain_logarithm(panel.yaxis)
    panel.set_title(title)
    panel.set_xlabel("step")
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.grid()


@styled
def bars(rows: Mapping[str, Mapping[str, float]], baseline: str) -> Figure:
    """Accuracies by task, one bar for each row; a dashed line for the baseline row."""
    tasks = list(rows[baseline])
    shown = [name for name in rows if name != baseline]
    figure = Figure(figsize=(7.2, 3.0))
    panel = figure.subplots()
    width = 0.8 / len(shown)
    for place, name in enumerate(shown):
        x = np.arange(len(tasks)) + (place - (len(shown) - 1) / 2) * width
        heights = [rows[name][task] for task in tasks]
        drawn = panel.bar(x, heights, width * 0.92, color=COLOURS[place], label=name)
        panel.bar_label(drawn, fmt="%.1f", fontsize=7, padding=1)
    for place, task in enumerate(tasks):
        level = rows[baseline][task]
        label = baseline if place == 0 else None
        panel.plot([place - 0.45, place + 0.45], [level] * 2, "k--", linewidth=1, label=label)
    panel.set_xticks(range(len(tasks)), tasks)
    panel.set_ylabel("test accuracy, %")
    panel.margins(y=0.12)
    figure.legend(loc="outside right upper")
    return figure


def mean_width(lines: int) -> int:
    """Over how many neighbours a curve of so many points is smoothed: gauges, which are few, by 1.

    Otherwise a curve would lag behind the band that it is drawn over.
    """
    return max(1, lines // _PARTS)


def _running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    return np.convolve(values, np.ones(width) / width, mode="valid")
