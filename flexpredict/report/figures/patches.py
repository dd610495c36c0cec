"""Figure 6 of the paper, and other pictures of what patches say: PCA, neighbours, attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.model.masking import Grid
from flexpredict.report.figures.style import PAGE, bare, name_row, short, styled

Picture = NDArray[np.uint8]  # (H, W, c)
_MARK, _NOTHING = "#D55E00", "#d9d9d9"


@dataclass(frozen=True, slots=True)
class Predicted:
    """An image of a run with the heat maps of one predicted patch."""

    image: Picture
    seen: NDArray[np.bool_]  # (h, w)
    place: int
    maps: Mapping[str, Tensor]  # title -> (N,)


@styled
def heat_maps(found: Mapping[str, Sequence[Predicted]]) -> Figure:
    """Figure 6: a row for each run; for each image its context, the rest gray, then maps."""
    images = len(next(iter(found.values())))
    titles = list(next(iter(found.values()))[0].maps)
    columns = images * (1 + len(titles))
    figure = Figure(figsize=(PAGE, max(1.2, 0.35 + 0.6 * len(found))))
    panels = figure.subplots(len(found), columns, squeeze=False)
    # Maps of one title and one grid share their colours, so that runs can be compared.
    limits = {
        (title, grid): _limits(
            [x.maps[title] for row in found.values() for x in row if x.seen.shape == grid]
        )
        for title in titles
        for grid in {one.seen.shape for row in found.values() for one in row}
    }
    for row, (name, several) in zip(panels, found.items(), strict=True):
        for block, one in enumerate(several):
            first = block * (1 + len(titles))
            _seen(row[first], one)
            for panel, title in zip(row[first + 1 :], titles, strict=False):
                low, high = limits[title, one.seen.shape]
                values = np.array(one.maps[title], dtype=float)
                values[one.place] = np.nan  # it is not compared with itself
                panel.set_facecolor(_NOTHING)
                drawn = panel.imshow(
                    values.reshape(one.seen.shape), cmap="viridis", vmin=low, vmax=high
                )
                _mark(panel, one.place, one.seen.shape)
        name_row(row[0], short(name))
    for place, panel in enumerate(panels[0]):
        panel.set_title(["context", *titles][place % (1 + len(titles))], fontsize=6)
    bare(panels.ravel())
    bar = figure.colorbar(drawn, ax=panels.ravel().tolist(), fraction=0.015, aspect=25)
    bar.set_ticks(drawn.get_clim(), labels=["least", "most"])
    bar.set_label("share of the map")
    ranges = [f"{title}: {_range(title, limits)}" for title in titles]
    figure.supxlabel(f"shares over those of an even map: {'; '.join(ranges)}", fontsize=6)
    return figure


def _range(title: str, limits: Mapping[tuple[str, Any], tuple[float, float]]) -> str:
    """What least and most mean: every kind of map has colours of its own, and would look alike."""
    over_even = [
        limit * (grid[0] * grid[1] - 1)
        for (name, grid), both in limits.items()
        if name == title
        for limit in both
    ]
    return f"{min(over_even):.2g} to {max(over_even):.2g}"


def _limits(maps: Sequence[Tensor]) -> tuple[float, float]:
    """The lowest and the highest, but for the place itself, which is zero."""
    every = torch.cat(list(maps))
    return float(every[every > 0].min()), float(every.max())


def _seen(panel: Axes, one: Predicted) -> None:
    scale = one.image.shape[0] // one.seen.shape[0]
    pixels = np.kron(one.seen, np.ones((scale, scale), dtype=bool))
    panel.imshow(
        np.where(pixels[..., None], one.image, 0.12 * one.image + 190).astype(np.uint8),
        extent=(-0.5, one.seen.shape[1] - 0.5, one.seen.shape[0] - 0.5, -0.5),
    )
    _mark(panel, one.place, one.seen.shape)


def _mark(panel: Axes, place: int, grid: tuple[int, ...]) -> None:
    down, across = divmod(place, grid[1])
    x = [across - 0.5, across + 0.5, across + 0.5, across - 0.5, across - 0.5]
    y = [down - 0.5, down - 0.5, down + 0.5, down + 0.5, down - 0.5]
    panel.plot(x, y, color="white", linewidth=1.8, solid_joinstyle="miter")
    panel.plot(x, y, color=_MARK, linewidth=1, solid_joinstyle="miter")


@styled
def colour_maps(images: Sequence[Picture], found: Mapping[str, NDArray[Any]]) -> Figure:
    """PCA: images in the first row, then a row of colours for each run, (n, h, w, 3)."""
    figure, panels = _rows(len(images), ["image", *found])
    for panel, image in zip(panels[0], images, strict=True):
        panel.imshow(image)
    for row, colours in zip(panels[1:], found.values(), strict=True):
        for panel, values in zip(row, colours, strict=True):
            panel.imshow(values)
    return figure


@styled
def attention_maps(
    images: Sequence[Picture],
    found: Mapping[str, Tensor],
    queries: Mapping[str, int],
    grids: Mapping[str, Grid],
) -> Figure:
    """What the marked patch looks at, mean over heads: images, then a row for each run, (n, N).

    Colours are of one scale, on which an even attention is 1.
    """
    figure, panels = _rows(len(images), ["image", *found])
    shares = {name: maps * maps.shape[-1] for name, maps in found.items()}
    low, high = (f(torch.stack([f(x) for x in shares.values()])) for f in (torch.amin, torch.amax))
    for panel, image in zip(panels[0], images, strict=True):
        panel.imshow(image)
    for row, (name, maps) in zip(panels[1:], shares.items(), strict=True):
        for panel, values in zip(row, maps, strict=True):
            drawn = panel.imshow(
                values.reshape(grids[name]), cmap="viridis", vmin=float(low), vmax=float(high)
            )
            _mark(panel, queries[name], grids[name])
    bar = figure.colorbar(drawn, ax=panels.ravel().tolist(), fraction=0.02, aspect=30)
    bar.set_label("attention, even: 1")
    return figure


@styled
def neighbour_rows(rows: Sequence[tuple[str, Picture, Sequence[Picture]]]) -> Figure:
    """A name, an image and those nearest to it, row by row."""
    most = max(len(near) for _, _, near in rows)
    figure = Figure(figsize=(min(PAGE, 0.75 * (most + 1) + 1.2), 0.75 * len(rows) + 0.25))
    panels = figure.subplots(len(rows), most + 1, squeeze=False)
    for row, (name, image, near) in zip(panels, rows, strict=True):
        for panel, picture in zip(row, [image, *near], strict=False):
            panel.imshow(picture)
        name_row(row[0], short(name))
    panels[0, 0].set_title("image")
    for place, panel in enumerate(panels[0, 1:], start=1):
        panel.set_title(str(place))
    bare(panels.ravel())
    return figure


def _rows(columns: int, names: Sequence[str]) -> tuple[Figure, NDArray[Any]]:
    figure = Figure(figsize=(min(PAGE, 0.95 * columns + 1.2), 0.95 * len(names)))
    panels = figure.subplots(len(names), columns, squeeze=False)
    for row, name in zip(panels, names, strict=True):
        name_row(row[0], short(name))
    bare(panels.ravel())
    return figure, panels
