"""A study at a glance: every seed a dot, means, differences from the baseline; sweeps as curves."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexpredict.report.analysis.sweep import Point
from flexpredict.report.figures.style import COLOURS, PAGE, REFERENCE, styled
from flexpredict.report.figures.sweep import over
from flexpredict.study.tables import Line, columns, differences, estimate, values_of

_MOST_PANELS = 4  # in a row


def figures(lines: Sequence[Line], baseline: str | None) -> dict[str, Figure]:
    """By name; none where nothing was measured."""
    found = {}
    if columns(lines):
        found["results"] = draw(lines, baseline)
        swept = list(lines[0]["swept"])
        numbers = all(isinstance(x, int | float) for line in lines for x in line["swept"].values())
        if len(swept) == 1 and numbers:
            found["sweep"] = over(curves(lines, swept[0]), "", swept[0])
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
def draw(lines: Sequence[Line], baseline: str | None) -> Figure:
    """A row of panels for what was measured; below each, the differences within pairs."""
    names, variants = columns(lines), list(dict.fromkeys(line["variant"] for line in lines))
    others = [variant for variant in variants if variant != baseline]
    wide = min(_MOST_PANELS, len(names))
    blocks = -(-len(names) // wide)
    paired = baseline is not None and bool(others)
    heights = [0.24 * len(variants) + 0.5] + ([0.24 * len(others) + 0.6] if paired else [])
    figure = Figure(figsize=(PAGE, sum(heights) * blocks))
    panels = figure.subplots(
        len(heights) * blocks, wide, squeeze=False, gridspec_kw={"height_ratios": heights * blocks}
    )
    for panel in panels.ravel():
        panel.set_visible(False)
    for place, name in enumerate(names):
        row, column = len(heights) * (place // wide), place % wide
        _values(panels[row, column], lines, variants, name, named=column == 0)
        if paired:
            assert baseline is not None
            _differences(panels[row + 1, column], lines, others, baseline, name, column == 0)
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
    panel: Axes,
    lines: Sequence[Line],
    variants: Sequence[str],
    baseline: str,
    column: str,
    named: bool,
) -> None:
    panel.axvline(0, color=REFERENCE, linewidth=0.8)
    for place, variant in enumerate(variants):
        pairs = differences(lines, variant, baseline, column)
        if pairs:
            panel.plot(pairs, [place] * len(pairs), ".", ms=4, alpha=0.5, color=COLOURS[1])
            found = estimate(pairs)
            panel.errorbar(
                found.mean, place, xerr=found.half, capsize=2.5, fmt="|", ms=9, color=COLOURS[1]
            )
    panel.set_xlabel(f"− {baseline}")
    _rows(panel, variants, named)


def _rows(panel: Axes, variants: Sequence[str], named: bool) -> None:
    panel.set_visible(True)
    panel.set_yticks(range(len(variants)), variants if named else [""] * len(variants))
    panel.set_ylim(len(variants) - 0.5, -0.5)
    panel.grid(axis="x")
    panel.margins(x=0.1)
