"""Masks: examples over images, and how often each patch is seen and asked for."""

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.model.masking import MaskSampler
from flexpredict.report.figures.style import COLOURS, PAGE, bare, short, styled

_CONTEXT, _HIDDEN = "#56B4E9", "#ECECEC"
_BLOCKS = [colour for colour in COLOURS if colour != _CONTEXT]


@styled
def mask_examples(sampler: MaskSampler, images: NDArray[np.uint8], patch_size: int) -> Figure:
    """Images with what the context encoder sees of them, and their target blocks beside it.

    images (n, H, W, c)
    """
    masks = sampler.sample(len(images), torch.Generator().manual_seed(0))
    rows, columns = sampler.grid
    figure = Figure(figsize=(1.15 * len(images) + 0.2, 3.55))
    panels = figure.subplots(3, len(images), squeeze=False)
    colours = ListedColormap([_HIDDEN, _CONTEXT, *_BLOCKS])
    for column, image in enumerate(images):
        seen = np.zeros(rows * columns, dtype=bool)
        seen[masks.context[column].numpy()] = True
        pixels = np.kron(seen.reshape(rows, columns), np.ones((patch_size,) * 2, dtype=bool))
        kinds = seen.astype(int)
        for block, places in enumerate(masks.targets[column].numpy()):
            kinds[places] = 2 + block % len(_BLOCKS)
        panels[0, column].imshow(image)
        panels[1, column].imshow(np.where(pixels[..., None], image, 235).astype(np.uint8))
        panels[2, column].imshow(
            kinds.reshape(rows, columns), cmap=colours, vmin=0, vmax=colours.N - 1
        )
    for row, title in enumerate(("image", "context", "targets")):
        panels[row, 0].set_ylabel(title)
    bare(panels.ravel())
    blocks = min(masks.targets.shape[1], len(_BLOCKS))
    names = {"context": _CONTEXT, "neither": _HIDDEN}
    names |= {f"target block {place + 1}": _BLOCKS[place] for place in range(blocks)}
    patches = [Patch(color=colour, label=name) for name, colour in names.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize=6)
    return figure


@styled
def mask_coverage(shares: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """How often each patch is context and how often a target: a row for each sampler."""
    figure = Figure(figsize=(0.7 * PAGE, 2.1 * len(shares)), layout="compressed")
    panels = figure.subplots(len(shares), 2, squeeze=False)
    for row, (name, pair) in zip(panels, shares.items(), strict=True):
        for panel, share, title in zip(row, pair, ("context", "target"), strict=True):
            drawn = panel.imshow(share, cmap="viridis", vmin=0, vmax=1)
            panel.set_title(f"seen as {title}" if title == "context" else f"asked for as {title}")
        row[0].set_ylabel(short(name))
    bare(panels.ravel())
    bar = figure.colorbar(drawn, ax=panels.ravel().tolist(), fraction=0.04)
    bar.set_label("share of images")
    return figure


@styled
def image_grid(images: NDArray[np.uint8]) -> Figure:
    """Images in rows of eight, (n, H, W, c)."""
    rows = -(-len(images) // 8)
    figure = Figure(figsize=(8.8, 1.1 * rows))
    panels = figure.subplots(rows, 8, squeeze=False)
    for panel, image in zip(panels.ravel(), images, strict=False):
        panel.imshow(image)
    bare(panels.ravel())
    return figure
