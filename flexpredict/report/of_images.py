"""Figures that need runs and images: Figure 6 of the paper, PCA, neighbours, attention, masks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flexpredict.build import build_sampler
from flexpredict.data.sources.subset import SubsetSource
from flexpredict.evaluate.features import extract
from flexpredict.evaluate.knn import nearest
from flexpredict.model.masking import Grid, Masks
from flexpredict.objective.ijepa import IJepa
from flexpredict.report.analysis import patches
from flexpredict.report.drawn import Drawn
from flexpredict.report.figures import masks as draw_masks
from flexpredict.report.figures import patches as draw
from flexpredict.report.images import Images
from flexpredict.report.runs import NotDrawn, Run

_DRAWS, _TEMPERATURES = 16, (1.0, 0.1)
_MEASURED, _HEATED = 32, 2  # images of Figure 6: for its numbers, and drawn
_FITTED, _SHOWN = 64, 6  # images of PCA and attention
_SEARCHED, _NEAREST, _ROWS = 1000, 7, 6  # of neighbours


def figure6(runs: Sequence[Run], images: Images) -> Drawn:
    found = {run.name: _predict(run, runs[0], images) for run in runs if _predicts_features(run)}
    if not found:
        raise NotDrawn("Figure 6 is about predicted features, and these runs predict pixels")
    numbers = {
        name: {f"{heat:g}": asdict(one.locality(heat)) for heat in _TEMPERATURES}
        for name, one in found.items()
    }
    table = {
        name: {
            f"{title}, temperature {heat}": factor * values[key]
            for heat, values in by_heat.items()
            for title, key, factor in (
                ("mass on 8 neighbours, %", "neighbourhood_mass", 100),
                ("mean distance, patches", "mean_distance", 1),
            )
        }
        for name, by_heat in numbers.items()
    }
    even = {  # by grid
        found[name].grid: f"{100 * by_heat['1']['even_neighbourhood_mass']:.1f} % on the 8 "
        f"neighbours and a mean distance of {by_heat['1']['even_mean_distance']:.2f} patches"
        for name, by_heat in numbers.items()
    }
    evenly = "; ".join(
        f"{words} ({rows}×{columns})" if len(even) > 1 else words
        for (rows, columns), words in even.items()
    )
    caption = (
        f"Softmax of the cosines between the features predicted for one hidden patch (marked) and "
        f"those that the target encoder gives for all other patches of the image: one draw of the "
        f"noise, and the mean of {_DRAWS}; temperatures (T) 1 and 0.1. Maps of one kind and grid "
        f"share their colours, from the lowest to the highest value. Numbers are means over "
        f"{_MEASURED} images at most{images.words}, all patches of a target block and {_DRAWS} "
        f"draws; an even map would have {evenly}."
    )
    figure = draw.heat_maps({name: one.shown() for name, one in found.items()})
    return Drawn("Figure 6: what is predicted for a patch", caption, figure, numbers, table)


def locality(run: Run, images: Images, temperature: float) -> patches.Locality:
    """The numbers of Figure 6."""
    return _predict(run, run, images).locality(temperature)


def _predicts_features(run: Run) -> bool:
    return run.settings.objective == "ijepa"


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What a run predicts for the first target block of some images."""

    predicted: Tensor  # (draws, B, T, D)
    tokens: Tensor  # (B, N, D)
    masks: Masks
    grid: Grid
    pictures: list[NDArray[np.uint8]]  # of the first few

    def locality(self, temperature: float) -> patches.Locality:
        places = self.masks.targets[:, 0]
        return patches.locality(self.predicted, self.tokens, places, self.grid, temperature)

    def shown(self) -> list[draw.Predicted]:
        rows = []
        for image, picture in enumerate(self.pictures):
            target = self.predicted.shape[2] // 2
            place = int(self.masks.targets[image, 0, target])
            seen = torch.zeros(self.tokens.shape[1], dtype=torch.bool)
            seen[self.masks.context[image]] = True
            maps = {}
            for heat in _TEMPERATURES:
                found = patches.heat_map(
                    self.predicted[:, image, target], self.tokens[image], place, heat
                )
                maps[f"T {heat:g}, draw"] = found[0]
                maps[f"T {heat:g}, mean"] = found.mean(0)
            rows.append(draw.Predicted(picture, seen.view(self.grid).numpy(), place, maps))
        return rows


def _predict(run: Run, first: Run, images: Images) -> _Prediction:
    """Under the masks of the first run, which are the same for all runs of its grid."""
    objective = run.objective
    assert isinstance(objective, IJepa)
    rows, grid = images.rows(run, _MEASURED), objective.encoder.grid
    pixels = images.read(run, rows)
    sampler = build_sampler((first if first.grid == grid else run).settings, grid)
    masks = sampler.sample(len(rows), torch.Generator().manual_seed(0))
    predicted = patches.predictions(objective, pixels, masks.to(run.device), _DRAWS).cpu()
    tokens = objective.targets(pixels).cpu()
    return _Prediction(predicted, tokens, masks, grid, images.pictures(run, rows[:_HEATED]))


def principal_components(runs: Sequence[Run], images: Images) -> Drawn:
    colours, numbers, table, fitted = {}, {}, {}, 0
    for run in runs:
        shown = images.rows(run, _SHOWN)
        rows = np.union1d(shown, images.rows(run, _FITTED))
        encoder = run.objective.encoders["target"]
        with torch.inference_mode():
            tokens = encoder(images.read(run, rows)).cpu()
        found, shares = patches.principal_colours(tokens)
        fitted = len(rows)
        colours[run.name] = found[np.isin(rows, shown)].unflatten(1, encoder.grid).numpy()
        numbers[run.name] = {"shares_of_variance": shares.tolist()}
        table[run.name] = {f"component {i + 1}, %": 100 * s for i, s in enumerate(shares.tolist())}
    caption = (
        f"The first three principal components of the target encoder's patch features as red, "
        f"green and blue, fitted on {fitted} images{images.words}, for each run by itself: colours "
        f"of one row can be compared, those of two rows cannot. Numbers: shares of the variance."
    )
    pictures = images.pictures(runs[0], images.rows(runs[0], _SHOWN))
    return Drawn(
        "Patch features as colours", caption, draw.colour_maps(pictures, colours), numbers, table
    )


def attention(runs: Sequence[Run], images: Images) -> Drawn:
    maps, grids, queries, numbers, table = {}, {}, {}, {}, {}
    for run in runs:
        encoder = run.objective.encoders["target"]
        rows, columns = grids[run.name] = encoder.grid
        query = queries[run.name] = rows // 2 * columns + columns // 2
        weights = patches.attention(encoder, images.read(run, images.rows(run, _SHOWN))).cpu()
        maps[run.name] = weights.mean(1)[:, query]
        distance = patches.attention_distance(weights, encoder.grid)
        numbers[run.name] = {"distance_by_head": distance.tolist()}
        table[run.name] = {
            "mean distance, patches": float(distance.mean()),
            "nearest head, patches": float(distance.min()),
            "farthest head, patches": float(distance.max()),
        }
    caption = (
        f"Attention of the marked patch in the last block of the target encoder, mean over heads, "
        f"all maps in colours of one scale, on which an even attention is 1; images{images.words}. "
        f"Numbers: how far heads look on average, over all patches."
    )
    pictures = images.pictures(runs[0], images.rows(runs[0], _SHOWN))
    figure = draw.attention_maps(pictures, maps, queries, grids)
    return Drawn("Attention", caption, figure, numbers, table)


def neighbours(runs: Sequence[Run], images: Images) -> Drawn:
    shown, names = [], {}
    numbers: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        source, rows = images.source(run), images.rows(run, _SEARCHED)
        if len(rows) < 2:
            raise NotDrawn("nearest neighbours need at least two images")
        features = extract(run.objective.encoders["target"], SubsetSource(source, rows), workers=0)
        # As many queries as leave the figure one page long, from the middle of the set.
        queries = np.linspace(0, len(rows) - 1, max(1, _ROWS // len(runs)) + 2).astype(int)[1:-1]
        near = min(_NEAREST, len(rows) - 1)
        _, found = nearest(F.normalize(features[queries], dim=1), features, near + 1, len(features))
        numbers[run.name] = {}
        for query, places in zip(queries.tolist(), found.tolist(), strict=True):
            others = [place for place in places if place != query][:near]
            image = source.name(int(rows[query]))
            numbers[run.name][image] = [source.name(int(rows[place])) for place in others]
            pictures = images.pictures(run, rows[[query, *others]])
            shown.append((query, run.name, pictures[0], pictures[1:]))
            names[f"{run.name}: {image}"] = numbers[run.name][image]
    shown.sort(key=lambda row: row[0])  # rows of one image together; runs stay in their order
    caption = (
        f"Images and those nearest to them by the cosine of the target encoder's features (token "
        f"means), among {len(rows):,} images{images.words}."
    )
    figure = draw.neighbour_rows([row[1:] for row in shown])
    return Drawn("Nearest neighbours", caption, figure, numbers, names=names)


def mask_examples(runs: Sequence[Run], images: Images) -> Drawn:
    run = runs[0]
    sampler = build_sampler(run.settings, run.grid)
    pictures = np.stack(images.pictures(run, images.rows(run, _SHOWN)))
    figure = draw_masks.mask_examples(sampler, pictures, run.settings.patch_size)
    caption = (
        f"Masks of {run.name}: what the context encoder sees (light blue below), and target "
        f"blocks, a colour each."
    )
    return Drawn("Masks over images", caption, figure, {})


FROM_IMAGES: dict[str, Callable[[Sequence[Run], Images], Drawn]] = {
    "fig6": figure6,
    "examples": mask_examples,
    "pca": principal_components,
    "neighbours": neighbours,
    "attention": attention,
}
