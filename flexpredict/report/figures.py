"""Figures, drawn from what a run wrote or from a sampler. Each gives a matplotlib Figure."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flexpredict.model.masking import MaskSampler

# Okabe and Ito's colours, which colour-blind eyes tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_CONTEXT, _HIDDEN = "#56B4E9", "#ECECEC"
_COVERAGE_IMAGES = 4096


def curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], keys: Mapping[str, str], smooth: int = 1
) -> Figure:
    """One panel for each metric (key -> title), one line for each run."""
    figure = Figure(figsize=(4.2 * len(keys), 3.0), layout="constrained")
    panels = figure.subplots(1, len(keys), squeeze=False)[0]
    for panel, (key, title) in zip(panels, keys.items(), strict=True):
        for colour, (name, lines) in zip(COLOURS, runs.items(), strict=False):
            steps = np.array([line["step"] for line in lines if key in line])
            values = np.array([line[key] for line in lines if key in line], dtype=float)
            if smooth > 1 and len(values) > 2 * smooth:
                panel.plot(steps, values, color=colour, alpha=0.25, linewidth=0.6)
                steps, values = steps[smooth - 1 :], _running_mean(values, smooth)
            panel.plot(steps, values, color=colour, label=name, linewidth=1.4)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def bars(rows: Mapping[str, Mapping[str, float]], baseline: str) -> Figure:
    """Accuracies by task, one bar for each row; a dashed line for the baseline row."""
    tasks = list(rows[baseline])
    shown = [name for name in rows if name != baseline]
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
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
    panel.set_ylabel("test accuracy, %", fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(y=0.12)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def mask_examples(sampler: MaskSampler, images: NDArray[np.uint8], patch_size: int) -> Figure:
    """Images with what the context encoder sees of them, and their target blocks beside it.

    images (n, H, W, c)
    """
    masks = sampler.sample(len(images), torch.Generator().manual_seed(0))
    rows, columns = sampler.grid
    figure = Figure(figsize=(1.5 * len(images), 4.6), layout="constrained")
    panels = figure.subplots(3, len(images), squeeze=False)
    colours = ListedColormap([_HIDDEN, _CONTEXT, *COLOURS])
    for column, image in enumerate(images):
        seen = np.zeros(rows * columns, dtype=bool)
        seen[masks.context[column].numpy()] = True
        pixels = np.kron(seen.reshape(rows, columns), np.ones((patch_size,) * 2, dtype=bool))
        kinds = seen.astype(int)
        for block, places in enumerate(masks.targets[column].numpy()):
            kinds[places] = 2 + block % len(COLOURS)
        panels[0, column].imshow(image)
        panels[1, column].imshow(np.where(pixels[..., None], image, 235).astype(np.uint8))
        panels[2, column].imshow(
            kinds.reshape(rows, columns), cmap=colours, vmin=0, vmax=colours.N - 1
        )
    for row, title in enumerate(("image", "context", "targets")):
        panels[row, 0].set_ylabel(title, fontsize=9)
    _bare(panels)
    return figure


def mask_coverage(sampler: MaskSampler) -> Figure:
    """How often each patch is context and how often a target."""
    rows, columns = sampler.grid
    context, target = np.zeros(rows * columns), np.zeros(rows * columns)
    generator, chunk = torch.Generator().manual_seed(0), 64
    for _ in range(_COVERAGE_IMAGES // chunk):
        masks = sampler.sample(chunk, generator)
        np.add.at(context, masks.context.flatten().numpy(), 1 / _COVERAGE_IMAGES)
        hit = torch.zeros(chunk, rows * columns).scatter(1, masks.targets.flatten(1), 1.0)
        target += hit.sum(0).numpy() / _COVERAGE_IMAGES
    figure = Figure(figsize=(6.0, 2.6), layout="constrained")
    panels = figure.subplots(1, 2, squeeze=False)
    for panel, share, title in zip(
        panels[0], (context, target), ("seen as context", "asked for as target"), strict=True
    ):
        drawn = panel.imshow(share.reshape(rows, columns), cmap="viridis", vmin=0, vmax=1)
        panel.set_title(f"{title}, share of images", fontsize=9)
    _bare(panels)
    figure.colorbar(drawn, ax=panels.ravel().tolist(), fraction=0.04)
    return figure


def image_grid(images: NDArray[np.uint8], columns: int = 8) -> Figure:
    """Images in rows, (n, H, W, c)."""
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.1 * columns, 1.1 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel, image in zip(panels.ravel(), images, strict=False):
        panel.imshow(image)
    _bare(panels)
    return figure


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element, to be put into a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def to_png(figure: Figure, dpi: int = 110) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=dpi)
    return data.getvalue()


def _bare(panels: NDArray[Any]) -> None:
    for panel in panels.ravel():
        panel.set_xticks([])
        panel.set_yticks([])
        for spine in panel.spines.values():
            spine.set_visible(False)


def _running_mean(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    return np.convolve(values, np.ones(width) / width, mode="valid")
