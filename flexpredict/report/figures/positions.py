"""Figure 5 of the paper, and pictures of what A has learnt."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from torch import Tensor

from flexpredict.model.masking import Grid
from flexpredict.report.analysis.positions import Similarity
from flexpredict.report.figures.style import (
    PAGE,
    REFERENCE,
    bare,
    legend_name,
    name_row,
    plain_logarithm,
    short,
    styled,
)

_LOWEST = 1e-5  # of the largest eigenvalue: what is below says little
Styles = Mapping[str, Mapping[str, Any]]


@styled
def similarities(
    found: Mapping[str, Sequence[Similarity]],
    queries: Mapping[str, Sequence[int]],
    grids: Mapping[str, Grid],
    notes: Mapping[str, str],
    draws: int,
) -> Figure:
    """Figure 5: a row for each run; for each query ψ, ψ + A n, and the mean over draws."""
    blocks = len(next(iter(found.values())))
    figure = Figure(figsize=(PAGE, 0.4 + 0.8 * len(found)))
    # A narrow column between two queries.
    widths = ([1, 1, 1, 0.12] * blocks)[:-1]
    every = figure.subplots(len(found), len(widths), squeeze=False, width_ratios=widths)
    for gap in every[:, 3::4].ravel():
        gap.set_visible(False)
    panels = np.delete(every, range(3, len(widths), 4), axis=1)
    low = min(float(m.min()) for row in found.values() for one in row for m in _maps(one))
    for row, (name, several) in zip(panels, found.items(), strict=True):
        for block, one in enumerate(several):
            query = queries[name][block]
            for panel, values in zip(row[3 * block :], _maps(one), strict=False):
                drawn = panel.imshow(
                    values.reshape(grids[name]), cmap="viridis", vmin=low, vmax=1.0
                )
                down, across = divmod(query, grids[name][1])
                for colour, width in (("black", 2), ("white", 1)):  # seen on dark and on bright
                    panel.plot(across, down, "o", ms=4, mfc="none", mec=colour, mew=width)
        name_row(row[0], f"{short(name)}\n{notes[name]}")
    for place, panel in enumerate(panels[0]):
        panel.set_title(("deterministic", "one draw", f"mean of {draws}")[place % 3])
    bare(panels.ravel())
    bar = figure.colorbar(drawn, ax=panels.ravel().tolist(), fraction=0.03, aspect=30)
    bar.set_label("cosine")
    return figure


def _maps(one: Similarity) -> tuple[Tensor, Tensor, Tensor]:
    return one.deterministic, one.draw, one.mean


@styled
def spectra(
    trained: Mapping[str, Tensor], untrained: Mapping[str, Tensor], styles: Styles
) -> Figure:
    """Eigenvalues of A Aᵀ, trained and untrained."""
    figure = Figure(figsize=(PAGE, 2.6))
    panel = figure.subplots()
    for place, values in enumerate(untrained.values()):
        label = "untrained" if place == 0 else None
        panel.plot(_ranks(values), values, color=REFERENCE, linewidth=0.8, label=label)
    for name, values in trained.items():
        panel.plot(_ranks(values), values, label=legend_name(short(name)), **styles[name])
    panel.set(yscale="log", xlabel="rank", ylabel="eigenvalue of A Aᵀ")
    faintest = min(float(values.max()) for values in trained.values())
    panel.set_ylim(bottom=_LOWEST * faintest)
    plain_logarithm(panel.yaxis)
    panel.grid()
    _legend_beside(figure)
    return figure


def _ranks(values: Tensor) -> Any:
    return np.arange(1, len(values) + 1)


@styled
def frequencies(growth: Mapping[str, Tensor], styles: Styles) -> Figure:
    """Variance per sin-cos frequency against that of the untrained A, a panel for each axis."""
    figure = Figure(figsize=(PAGE, 2.6))
    panels = figure.subplots(1, 2, sharey=True)
    for axis, panel in enumerate(panels):
        for name, ratio in growth.items():
            # Frequencies are 10000^(−k / (P/4)); one turn of a sine takes 2π over that patches.
            wavelength = 2 * np.pi * 10_000 ** (np.arange(ratio.shape[1]) / ratio.shape[1])
            label = legend_name(short(name)) if axis == 0 else None
            panel.plot(wavelength, ratio[axis], label=label, **styles[name])
        panel.axhline(1, color=REFERENCE, linewidth=0.8)
        panel.set(
            xscale="log",
            yscale="log",
            xlabel="wavelength, patches",
            title=("column (x)", "row (y)")[axis],
        )
        panel.grid()
        plain_logarithm(panel.xaxis)
    low, high = panels[0].get_ylim()
    # Ticks of a logarithm are too far apart for growth by some percent.
    ticks = LogLocator(subs=(1, 2, 5)) if high > 4 * low else MaxNLocator(6)
    panels[0].yaxis.set_major_locator(ticks)
    plain_logarithm(panels[0].yaxis)
    panels[0].set_ylabel("noise variance,\ntrained ÷ untrained")
    _legend_beside(figure)
    return figure


@styled
def correlation_maps(found: Mapping[str, Tensor]) -> Figure:
    """Correlations between channels of ψ + A n: a panel for each run, the untrained one first."""
    rows = -(-len(found) // 4)
    columns = -(-len(found) // rows)
    figure = Figure(figsize=(0.25 + 1.6 * columns, 1.85 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    limit = max(_off_diagonal(values) for values in found.values())
    for panel, (name, values) in zip(panels, found.items(), strict=False):
        drawn = panel.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit)
        panel.set_title(short(name))
        quarters = np.arange(4) * len(values) / 4
        for edge in quarters[1:]:
            panel.axhline(edge - 0.5, color="black", linewidth=0.3)
            panel.axvline(edge - 0.5, color="black", linewidth=0.3)
    bare(panels)
    for panel, (_, values) in zip(panels, found.items(), strict=False):
        middles = (np.arange(4) + 0.5) * len(values) / 4 - 0.5
        names = ["x sin", "x cos", "y sin", "y cos"]
        panel.set_xticks(middles, names, fontsize=5.5)
        panel.set_yticks(middles, names, fontsize=5.5, rotation=90, va="center")
        panel.tick_params(length=0, pad=1)
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    bar = figure.colorbar(drawn, ax=panels.tolist(), fraction=0.03, aspect=30, extend="both")
    bar.set_label("correlation")
    return figure


def _off_diagonal(values: Tensor) -> float:
    return float((values - values.diag().diag()).abs().quantile(0.999))


@styled
def likeness_matrix(names: Sequence[str], values: Tensor) -> Figure:
    """How alike the covariances of every two runs are; NaN where they cannot be compared."""
    side = min(PAGE - 0.5, 1.6 + 0.36 * len(names))
    figure = Figure(figsize=(side + 0.5, side))
    panel = figure.subplots()
    drawn = panel.imshow(values, cmap="PuOr", vmin=-1, vmax=1)
    shown = [short(name, 20) for name in names]
    panel.set_xticks(range(len(names)), shown, rotation=60, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(len(names)), shown)
    if len(names) <= 16:
        for (row, column), value in np.ndenumerate(values.numpy()):
            if np.isfinite(value):
                dark, value = abs(value) > 0.6, round(value, 2) + 0.0  # no minus zero
                panel.text(
                    column, row, f"{value:.2f}".replace("0.", "."), ha="center", va="center",
                    fontsize=5.5, color="white" if dark else "black",
                )  # fmt: skip
    for spine in panel.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(drawn, ax=panel, fraction=0.04)
    bar.set_label("likeness of A Aᵀ")
    return figure


def _legend_beside(figure: Figure) -> None:
    figure.legend(loc="outside right upper", handlelength=2.6)
