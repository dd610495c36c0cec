"""A figure with what there is to say about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from flexpredict.report.figures.style import line_style
from flexpredict.report.runs import Run


@dataclass(frozen=True, slots=True)
class Drawn:
    title: str
    caption: str
    figure: Figure
    numbers: Mapping[str, Any]  # all of them, for figures.json
    # Those that people quote: run -> quantity -> number.
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)  # image -> images near it


def styles_of(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """A colour for each run; those that differ in nothing but their seed share it."""
    groups: list[Any] = []
    count: dict[int, int] = {}
    styles = {}
    for run in runs:
        settings = run.settings.model_dump(exclude={"seed"})
        if settings not in groups:
            groups.append(settings)
        place = groups.index(settings)
        count[place] = count.get(place, -1) + 1
        styles[run.name] = line_style(place, count[place])
    return styles
