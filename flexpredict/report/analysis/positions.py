"""What the noise does to positions (Figure 5), and what its matrix A has learnt."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flexpredict.model.masking import Grid
from flexpredict.model.predictor import Predictor
from flexpredict.report.analysis.grid import distances


@dataclass(frozen=True, slots=True)
class Similarity:
    """Cosines of a query's position with those of all N patches."""

    deterministic: Tensor  # (N,)
    draw: Tensor  # (N,), with the noise of one draw
    mean: Tensor  # (N,), the mean of many draws


@dataclass(frozen=True, slots=True)
class Displacement:
    """Where noisy positions point to: over all queries and many draws of each."""

    nearest_is_query: float  # share of draws
    patches: float  # mean distance from the query to the patch whose position is nearest


def projection(predictor: Predictor) -> Tensor:
    """A, (P, D); for untied runs that of the noise."""
    return (predictor.positions.noise_projection or predictor.predictor_embed).weight.detach()


def similarity(
    positions: Tensor, query: int, noise: Tensor, draws: int, generator: torch.Generator
) -> Similarity:
    """positions ψ (N, P); noise: what normal numbers are multiplied with."""
    noisy = positions[query] + _sample(noise, draws, generator)
    cosines = _cosines(noisy, positions)  # (draws, N)
    exact = _cosines(positions[query], positions)
    return Similarity(exact, cosines[0], cosines.mean(0))


def displacement(
    positions: Tensor, grid: Grid, noise: Tensor, draws: int, generator: torch.Generator
) -> Displacement:
    apart = distances(grid)
    same, far = 0.0, 0.0
    for query, position in enumerate(positions):
        noisy = position + _sample(noise, draws, generator)
        nearest = _cosines(noisy, positions).argmax(-1)  # (draws,)
        same += float((nearest == query).double().mean())
        far += float(apart[query, nearest].mean())
    return Displacement(same / len(positions), far / len(positions))


def spectrum(matrix: Tensor) -> Tensor:
    """Eigenvalues of A Aᵀ, largest first, (P,)."""
    values = torch.linalg.svdvals(matrix.double()).square()
    return F.pad(values, (0, len(matrix) - len(values)))


def variance_by_frequency(matrix: Tensor) -> Tensor:
    """The diagonal of A Aᵀ by axis and sin-cos frequency, mean of sine and cosine, (2, P / 4).

    The column (x) comes first, as in ψ; frequencies fall.
    """
    variance = matrix.double().square().sum(1)
    return variance.view(2, 2, -1).mean(1)


def correlations(matrix: Tensor) -> Tensor:
    """Of the noise on every two channels of ψ, (P, P)."""
    rows = F.normalize(matrix.double(), dim=1)
    return rows @ rows.T


def mean_correlation(matrix: Tensor) -> float:
    """Root mean square over pairs of channels; √(1 / D) for an untrained A of many rows."""
    found = correlations(matrix)
    pairs = found[~torch.eye(len(found), dtype=torch.bool)]
    return float(pairs.square().mean().sqrt())


def likeness(one: Tensor, other: Tensor) -> float:
    """How alike two covariances A Aᵀ are beyond both being noise on every channel, −1 to 1.

    The cosine between them once the mean variance is taken off their diagonals: about 0 for two
    untrained matrices, 1 for multiples of the same.
    """
    pair = [_beyond_isotropic(matrix.double()) for matrix in (one, other)]
    return float(F.cosine_similarity(pair[0].flatten(), pair[1].flatten(), dim=0))


def _beyond_isotropic(matrix: Tensor) -> Tensor:
    covariance = matrix @ matrix.T
    unit = torch.eye(len(covariance), dtype=covariance.dtype)
    return covariance - covariance.trace() / len(covariance) * unit


def _sample(noise: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(draws, noise.shape[1], generator=generator, dtype=noise.dtype)
    return normal @ noise.T


def _cosines(some: Tensor, positions: Tensor) -> Tensor:
    return F.normalize(some, dim=-1) @ F.normalize(positions, dim=-1).T
