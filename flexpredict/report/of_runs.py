"""Figures that need nothing but runs: Figures 3, 4 and 5 of the paper, A, masks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from flexpredict.build import build_sampler
from flexpredict.config import WITHOUT_EFFECT
from flexpredict.health.gauges import effective_rank
from flexpredict.model.predictor import Predictor
from flexpredict.report import evaluations
from flexpredict.report.analysis import positions
from flexpredict.report.analysis.masks import coverage
from flexpredict.report.analysis.sweep import Point, series
from flexpredict.report.drawn import Drawn, styles_of
from flexpredict.report.figures import masks as draw_masks
from flexpredict.report.figures import positions as draw
from flexpredict.report.figures.sweep import over
from flexpredict.report.runs import NotDrawn, Run, differing

_DRAWS = 256
_MASKING = (
    "masking", "chunk_size", "target_blocks", "target_scale", "target_aspect", "context_scale",
    "min_context", "mask_ratio",
)  # fmt: skip


def figure3(runs: Sequence[Run]) -> Drawn:
    panels, numbers = {}, {}
    for label, found in evaluations.by_label(runs).items():
        scores = {name: evaluations.score(one) for name, one in found.items()}
        lines = series(runs, {name: score for name, score in scores.items() if score is not None})
        if any(len(points) > 1 for points in lines.values()):
            panels[label], numbers[label] = lines, _numbers(lines)
    if not panels:
        raise NotDrawn(
            "Figure 3 needs one evaluation of at least two runs that differ in noise_std, and in "
            "nothing else but positions and seed"
        )
    caption = (
        "Test accuracy against noise_std. Dots are seeds, bars one standard deviation over them."
    )
    return Drawn("Figure 3: how much noise", caption, over(panels, "accuracy, %"), numbers)


def figure4(runs: Sequence[Run]) -> Drawn:
    sizes = {run.name: _sizes(run) for run in runs}
    strengths: dict[tuple[str, torch.Size], set[float]] = {}
    for run in runs:
        strengths.setdefault(_shape(run), set()).add(run.noise_std)
    if max(map(len, strengths.values())) < 2:
        raise NotDrawn("Figure 4 needs at least two runs of one size that differ in noise_std")
    panels = {}
    for key, title in (("l1_A", "A"), ("l1_token", _token_name(runs))):
        largest: dict[tuple[str, torch.Size], float] = {}
        for run in runs:
            largest[_shape(run)] = max(sizes[run.name][key], largest.get(_shape(run), 0.0))
        shares = {run.name: sizes[run.name][key] / largest[_shape(run)] for run in runs}
        panels[title] = series(runs, shares)
    caption = (
        "L1 norms of A and of the masked tokens' bias, each divided by the largest of the sweep, "
        "of models of one objective and size by themselves. "
        "Weight decay acts on A at every noise_std: compare runs of equal schedules."
    )
    numbers = {"runs": sizes, "normalised": {key: _numbers(line) for key, line in panels.items()}}
    table = {name: {"L1 of A": size["l1_A"], "‖A‖": size["norm_A"]} for name, size in sizes.items()}
    figure = over(panels, "normalised L1 norm")
    return Drawn("Figure 4: noise and the size of A", caption, figure, numbers, table)


def _shape(run: Run) -> tuple[str, torch.Size]:
    """What A is and how large: those of other kinds have other norms."""
    return run.settings.objective, run.predictor.predictor_embed.weight.shape


def noise_matrix(run: Run) -> Tensor:
    """What normal numbers are multiplied with."""
    stochastic = run.predictor.positions
    matrix = stochastic.noise_matrix(run.predictor.predictor_embed)
    if matrix is None:
        raise NotDrawn(
            f"{run.name} has noise that is not that of one matrix: "
            f"positions={run.settings.positions}"
        )
    return matrix.detach()


def _sizes(run: Run) -> dict[str, float]:
    predictor = run.predictor
    A, token = positions.projection(predictor), _token(run, predictor)
    found = {
        "l1_A": A.abs().sum(),
        "l1_per_element_A": A.abs().mean(),
        "norm_A": A.norm(),
        "l1_token": token.abs().sum(),
        "l1_per_element_token": token.abs().mean(),
        "norm_token": token.norm(),
    }
    with suppress(NotDrawn):  # rms(A n) / rms(ψ): see docs/fidelity.md on features of fixed norm
        noise, psi = noise_matrix(run), predictor.predictor_pos_embed
        found["noise_to_position"] = noise.norm() / len(noise) ** 0.5 / psi.square().mean().sqrt()
    sizes = {name: float(value) for name, value in found.items()}
    return {"noise_std": run.noise_std, **sizes, "norm_gamma": run.norm_gamma}


def _token(run: Run, predictor: Predictor) -> Tensor:
    """What masked tokens share: m̃, or b in the released form with noise."""
    if run.settings.form == "released" and predictor.positions.noise_on_masked:
        return predictor.predictor_embed.bias.detach()
    return predictor.mask_token.detach()


def _token_name(runs: Sequence[Run]) -> str:
    released = [run.settings.form == "released" and run.noise_std > 0 for run in runs]
    if all(released):
        return "b, which stands in for m̃"
    return "m̃, or b in the released form" if any(released) else "m̃"


def figure5(runs: Sequence[Run]) -> Drawn:
    maps, queries, notes, numbers, table = {}, {}, {}, {}, {}
    for run in runs:
        predictor = run.predictor
        psi = predictor.predictor_pos_embed[0].detach().cpu()
        noise = noise_matrix(run).cpu()
        rows, columns = predictor.grid
        queries[run.name] = [
            rows // 2 * columns + columns // 2, min(columns + 1, rows * columns - 1)
        ]  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        maps[run.name] = [
            positions.similarity(psi, query, noise, _DRAWS, generator)
            for query in queries[run.name]
        ]
        found = positions.displacement(psi, predictor.grid, noise, _DRAWS, generator)
        numbers[run.name] = asdict(found)
        table[run.name] = {
            "nearest ψ is the query's, %": 100 * found.nearest_is_query,
            "displacement, patches": found.patches,
        }
        notes[run.name] = (
            f"own {100 * found.nearest_is_query:.0f} %, off {found.patches:.2f} patches"
        )
    grids = {run.name: run.grid for run in runs}
    caption = (
        f"Cosine between the position of a query (ring) and that of every patch: ψ, ψ + A n for "
        f"one draw of n, and the mean of {_DRAWS} draws; two queries. Beside each name, over all "
        f"queries: the share of draws whose nearest position is the query's own, and how far the "
        f"nearest is off on average, in patches. m̃ and b are left out."
    )
    figure = draw.similarities(maps, queries, grids, notes, _DRAWS)
    return Drawn("Figure 5: where a noisy position points", caption, figure, numbers, table)


def spectrum(runs: Sequence[Run]) -> Drawn:
    trained = {run.name: positions.spectrum(_A(run)) for run in runs}
    untrained = {name: positions.spectrum(A) for name, A in _untrained(runs).items()}
    ranks = {name: effective_rank(values) for name, values in trained.items()}
    first = {name: effective_rank(values) for name, values in untrained.items()}
    numbers = {
        name: {"eigenvalues": values.tolist(), "effective_rank": ranks[name]}
        for name, values in trained.items()
    } | {
        name: {"eigenvalues": values.tolist(), "effective_rank": first[name]}
        for name, values in untrained.items()
    }
    table = {name: {"effective rank of A Aᵀ": rank} for name, rank in (ranks | first).items()}
    caption = (
        "Eigenvalues of A Aᵀ, the covariance of StoP's noise for noise_std 1. The effective rank "
        "is exp of the entropy of their shares."
    )
    figure = draw.spectra(trained, untrained, styles_of(runs))
    return Drawn("Spectrum of A Aᵀ", caption, figure, numbers, table)


def frequencies(runs: Sequence[Run]) -> Drawn:
    growth, numbers, styles = {}, {}, styles_of(runs)
    for run in _noise_on_waves(runs):
        now = positions.variance_by_frequency(_A(run))
        first = positions.variance_by_frequency(positions.projection(run.untrained))
        growth[run.name] = now / first
        numbers[run.name] = {
            axis: {
                "variance": (run.noise_std**2 * now[place]).tolist(),
                "diagonal_of_A_AT": now[place].tolist(),
                "over_untrained": growth[run.name][place].tolist(),
            }
            for place, axis in enumerate(("column", "row"))
        }
    caption = (
        "Variance of A n on the sines and cosines of each frequency of ψ, by axis, divided by that "
        "of the untrained A; of runs without noise, what it would be. Long wavelengths tell far "
        "parts of an image apart, short ones neighbours."
    )
    return Drawn("Noise by frequency", caption, draw.frequencies(growth, styles), numbers)


def correlations(runs: Sequence[Run]) -> Drawn:
    runs = _noise_on_waves(runs)
    found = _untrained(runs[:1]) | {run.name: _A(run) for run in runs}
    figure = draw.correlation_maps(
        {name: positions.correlations(matrix) for name, matrix in found.items()}
    )
    means = {name: positions.mean_correlation(matrix) for name, matrix in found.items()}
    numbers = {name: {"rms_correlation": mean} for name, mean in means.items()}
    table = {name: {"rms correlation": mean} for name, mean in means.items()}
    caption = (
        "Correlation of the noise on every two channels of ψ: sines and cosines of the column (x) "
        "and of the row (y), frequencies falling from left to right within each. The diagonal is "
        "1. Of runs without noise, what it would be."
    )
    return Drawn("Correlations of the noise", caption, figure, numbers, table)


def likeness(runs: Sequence[Run]) -> Drawn:
    every = {run.name: _A(run) for run in runs} | _untrained(runs)
    names = list(every)
    values = torch.full((len(names), len(names)), torch.nan, dtype=torch.float64)
    for row, one in enumerate(every.values()):
        for column, other in enumerate(every.values()):
            if len(one) == len(other):
                values[row, column] = positions.likeness(one, other)
    between = {
        f"{names[row]} | {names[column]}": float(values[row, column])
        for row in range(len(names))
        for column in range(row)
        if values[row, column].isfinite()
    }
    caption = (
        "How alike the covariances A Aᵀ are: their cosine once the mean variance is taken off "
        "both. About 0 for untrained matrices of two seeds, 1 for multiples of the same."
    )
    table = {
        what: {"mean likeness": sum(pairs) / len(pairs)}
        for what, pairs in _kinds_of_pairs(runs, values).items()
        if pairs
    }
    means = {what: row["mean likeness"] for what, row in table.items()}
    numbers = {"pairs": between, "means": means}
    return Drawn("Likeness of A", caption, draw.likeness_matrix(names, values), numbers, table)


def _kinds_of_pairs(runs: Sequence[Run], values: Tensor) -> dict[str, list[float]]:
    """Likenesses by what two matrices have in common; the runs come first in `values`."""
    first = list(_untrained(runs))
    found: dict[str, list[float]] = {"same settings, other seed": [], "own beginning": []}
    for row, one in enumerate(runs):
        for column, other in enumerate(runs[:row]):
            if set(differing([one, other])) - WITHOUT_EFFECT == {"seed"}:
                found["same settings, other seed"].append(float(values[row, column]))
        begun = len(runs) + first.index(_beginning(one, runs))
        found["own beginning"].append(float(values[row, begun]))
    among = values[len(runs) :, len(runs) :]
    pairs = among[torch.ones_like(among).tril(-1).bool() & among.isfinite()]
    return found | {"two untrained": pairs.tolist()}


def masks(runs: Sequence[Run]) -> Drawn:
    shares, numbers = {}, {}
    known: list[Any] = []
    for run in runs:
        grid = run.grid
        about = grid, [getattr(run.settings, name) for name in _MASKING]
        if about in known:
            continue
        known.append(about)
        name = f"{run.settings.masking}, {grid[0]}×{grid[1]}"
        name = f"{name} ({run.name})" if name in shares else name
        sampler = build_sampler(run.settings, grid)
        shares[name] = coverage(sampler, run.settings.chunk_size)
        numbers[name] = {
            kind: {
                "mean": float(share.mean()),
                "lowest": float(share.min()),
                "highest": float(share.max()),
                "by_row": share.mean(1).tolist(),
                "by_column": share.mean(0).tolist(),
            }
            for kind, share in zip(("context", "target"), shares[name], strict=True)
        }
    caption = (
        "How often each patch is seen as context, and how often it is asked for as a target. Fewer "
        "blocks fit over a corner than over the middle, whatever draws them."
    )
    return Drawn("Mask coverage", caption, draw_masks.mask_coverage(shares), numbers)


FROM_RUNS: dict[str, Callable[[Sequence[Run]], Drawn]] = {
    "fig3": figure3,
    "fig4": figure4,
    "fig5": figure5,
    "spectrum": spectrum,
    "frequencies": frequencies,
    "correlations": correlations,
    "likeness": likeness,
    "masks": masks,
}


def _noise_on_waves(runs: Sequence[Run]) -> list[Run]:
    """Without those whose noise is the same in all directions, or whose places are no waves."""
    found = [run for run in runs if run.settings.positions not in ("fixed", "learned")]
    if not found:
        raise NotDrawn("these runs have fixed noise, which no matrix shapes, or learned positions")
    return found


def _A(run: Run) -> Tensor:
    return positions.projection(run.predictor).cpu()


def _untrained(runs: Sequence[Run]) -> dict[str, Tensor]:
    """Each untrained A once: runs of one seed, shape and kind begin alike."""
    return {_beginning(run, runs): positions.projection(run.untrained) for run in runs}


def _beginning(run: Run, runs: Sequence[Run]) -> str:
    """The name of a run's untrained A."""
    shapes = {tuple(one.untrained.predictor_embed.weight.shape) for one in runs}
    shape = run.untrained.predictor_embed.weight.shape
    unlike = ", {}×{}".format(*shape) if len(shapes) > 1 else ""
    own = ", the noise's own" if run.untrained.positions.noise_projection is not None else ""
    return f"untrained, seed {run.settings.seed}{unlike}{own}"


def _numbers(lines: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    return {
        name: [
            {"noise_std": one.at, "values": one.values, "mean": one.mean, "std": one.std}
            for one in points
        ]
        for name, points in lines.items()
    }
