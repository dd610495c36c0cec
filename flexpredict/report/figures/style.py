"""How figures look: sizes for print, text that stays text, colours that all eyes tell apart."""

import io
import warnings
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

# Okabe and Ito's colours, which colour-blind eyes tell apart; their yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
REFERENCE = "#767676"  # of what was not trained
COLUMN, PAGE = 3.3, 6.9  # inches: widths of a column and of a page of a paper

PRINT: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.2,
    "image.interpolation": "nearest",
    "figure.constrained_layout.use": True,
    "text.parse_math": False,  # names of runs are text
    "svg.fonttype": "none",
    "svg.hashsalt": "flexpredict",
}
styled = rc_context(PRINT)  # for functions that draw


def line_style(place: int, of_group: int = 0) -> dict[str, Any]:
    """Colour and dashes of a line; lines of one group share their colour."""
    dash = of_group + place // len(COLOURS)
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[dash % len(DASHES)]}


def legend_name(name: str) -> str:
    """matplotlib leaves out of legends what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name


def short(name: str, most: int = 22) -> str:
    """A name that fits beside a row of pictures."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


def name_row(panel: Axes, text: str) -> None:
    """Says what a row of pictures is, to its left."""
    panel.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=6.5)


def plain_logarithm(*axes: Axis) -> None:
    """Marks of a logarithmic axis as 0.01, 0.1, …, which need no formulas."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def bare(panels: Sequence[Axes] | NDArray[Any]) -> None:
    """Pictures have no axes."""
    for panel in panels:
        panel.set_xticks([])
        panel.set_yticks([])
        for spine in panel.spines.values():
            spine.set_visible(False)


def to_svg(figure: Figure) -> str:
    return _saved(figure, "svg").decode()


def to_png(figure: Figure) -> bytes:
    return _saved(figure, "png", dpi=200)


def _saved(figure: Figure, kind: str, **how: Any) -> bytes:
    data = io.BytesIO()
    with rc_context(PRINT), warnings.catch_warnings():
        # A run may be called in letters that the font has not: they are boxes in a PNG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(data, format=kind, metadata=metadata, **how)
    figure.set_layout_engine("none")  # the next format gets the same layout, and sooner
    return data.getvalue()
