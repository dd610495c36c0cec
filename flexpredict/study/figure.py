"""A study at a glance: every seed a dot, means, differences from the baseline; sweeps as curves."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flexpredict.report.analysis.sweep import Point
from flexpredict.report.figures.style import COLOURS, PAGE, REFERENCE, styled
from flexpredict.report.figures.sweep import over
from flexpredict.study.tables import (
    Baseline,
    Line,
    columns,
    compared,
    differences,
    estimate,
    values_of,
)

_MOST_PANELS = 4  # in a row
_BARS = "dots: seeds; bars: ± one standard deviation over them (not intervals of differences)"


def figures(lines: Sequence[Line], baseline: Baseline) -> dict[str, Figure]:
    """By name; none where nothing was measured."""
    found = {}
    if columns(lines):
        found["results"] = draw(lines, baseline)
        swept = list(lines[0]["swept"])
        numbers = all(isinstance(x, int | float) for line in lines for x in line["swept"].values())
        if len(swept) == 1 and numbers:
            found["sweep"] = over(curves(lines, swept[0]), "", swept[0], bars=_BARS)
    return found


def curves(lines: Sequence[Line], along: str) -> dict[str, dict[str, list[Point]]]:
    """column -> group -> what was found at each swept value, rising."""
    found: dict[str, dict[str, list[Point]]] = {}
    for column in columns(lines):
        points: dict[str, dict[float, dict[str, float]]] = {}
        for line in lines:
            if (value := line["found"].get(column)) is not None:
                at = points.setdefault(line["group"], {}).setdefault(line["swept"][along], {})
                at[f"seed {line['seed']}"] = value
        found[column] = {
            group: [Point(at, some[at]) for at in sorted(some)] for group, some in points.items()
        }
    return found


@styled
def draw(lines: Sequence[Line], baseline: Baseline) -> Figure:
    """A row of panels for what was measured; below each, the differences within pairs."""
    names, variants = columns(lines), list(dict.fromkeys(line["variant"] for line in lines))
    against = compared(lines, baseline)
    wide = min(_MOST_PANELS, len(names))
    blocks = -(-len(names) // wide)
    heights = [0.24 * len(variants) + 0.5] + ([0.24 * len(against) + 0.6] if against else [])
    figure = Figure(figsize=(PAGE, sum(heights) * blocks))
    panels = figure.subplots(
        len(heights) * blocks, wide, squeeze=False, gridspec_kw={"height_ratios": heights * blocks}
    )
    for panel in panels.ravel():
        panel.set_visible(False)
    for place, name in enumerate(names):
        row, column = len(heights) * (place // wide), place % wide
        _values(panels[row, column], lines, variants, name, named=column == 0)
        if against:
            _differences(panels[row + 1, column], lines, against, name, named=column == 0)
    return figure


def _values(
    panel: Axes, lines: Sequence[Line], variants: Sequence[str], column: str, named: bool
) -> None:
    for place, variant in enumerate(variants):
        values = list(values_of(lines, variant, column).values())
        if values:
            panel.plot(values, [place] * len(values), ".", ms=4, alpha=0.5, color=COLOURS[0])
            panel.plot(estimate(values).mean, place, "|", ms=11, mew=1.6, color=COLOURS[0])
    panel.set_title(column)
    _rows(panel, variants, named)


def _differences(
    panel: Axes, lines: Sequence[Line], against: Mapping[str, str], column: str, named: bool
) -> None:
    panel.axvline(0, color=REFERENCE, linewidth=0.8)
    for place, (variant, other) in enumerate(against.items()):
        pairs = differences(lines, variant, other, column)
        if pairs:
            panel.plot(pairs, [place] * len(pairs), ".", ms=4, alpha=0.5, color=COLOURS[1])
            found = estimate(pairs)
            panel.errorbar(
                found.mean, place, xerr=found.half, capsize=2.5, fmt="|", ms=9, color=COLOURS[1]
            )
    others = set(against.values())
    what = f"− {others.pop()}" if len(others) == 1 else "difference within pairs"
    panel.set_xlabel(f"{what}, 95 %")
    panel.xaxis.set_major_locator(MaxNLocator(4))
    _rows(panel, list(against), named)


def _rows(panel: Axes, variants: Sequence[str], named: bool) -> None:
    panel.set_visible(True)
    panel.set_yticks(range(len(variants)), variants if named else [""] * len(variants))
    panel.set_ylim(len(variants) - 0.5, -0.5)
    panel.grid(axis="x")
    panel.margins(x=0.1)
