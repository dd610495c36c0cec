"""Gauges of a run: pure functions of tensors and modules. They need no labels.

docs/health.md says what each is good for, under the names that metrics.jsonl has.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flexpredict.model.masking import Grid
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder


def gram(features: Tensor) -> Tensor:
    """Products of all features (images, D) with each other, or of all columns if these are fewer.

    Its eigenvalues are the squares of the features' singular values.
    """
    rows = features.detach().double()
    return rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows


def rankme(products: Tensor) -> float:
    """The effective rank of features, from their `gram`: e to the entropy of their singular values.

    Between 1 and the smaller side (RankMe, arXiv 2210.02885). By NumPy on the CPU: for a matrix of
    this size a GPU takes longer, and so do torch's threads.
    """
    matrix = products.cpu().numpy()
    if not np.isfinite(matrix).all():
        return math.nan
    values = torch.from_numpy(np.linalg.eigvalsh(matrix))
    return effective_rank(values.clamp(min=0).sqrt())


def effective_rank(values: Tensor) -> float:
    """e to the entropy of their shares: 1 where one is left, their number where all are equal."""
    return float(torch.special.entr(values / values.sum()).sum().exp())


def spread(features: Tensor) -> Tensor:
    """How much features (images, D) differ from image to image: rms(z − mean of z) / rms(z)."""
    return rms(features - features.mean(dim=0)) / rms(features)


def mean_cosine(features: Tensor) -> Tensor:
    """The mean cosine between the features of two different images, (images, D) -> ()."""
    count = len(features)
    total = F.normalize(features, dim=1).sum(dim=0).square().sum()
    return (total - count) / (count * (count - 1))


@torch.no_grad()
def encoder_distance(trained: Encoder, follower: Encoder) -> Tensor:
    """‖θ − θ̄‖ / ‖θ‖ over the weights that are trained."""
    both = zip(trained.parameters(), follower.parameters(), strict=True)
    pairs = [(one, other) for one, other in both if one.requires_grad]
    ours: list[Tensor] = [one for one, _ in pairs]
    theirs: list[Tensor] = [other for _, other in pairs]
    return _norm(torch._foreach_sub(ours, theirs)) / _norm(ours)


@torch.no_grad()
def projection_gauges(predictor: Predictor, encoder: Encoder) -> dict[str, Tensor]:
    """How large A, b, m̃ and the encoder's last scale γ are: what StoP's noise acts on."""
    projection = predictor.predictor_embed
    noise = predictor.positions.noise_projection
    gauges = {
        "norm_A": projection.weight.norm(),
        "l1_A": projection.weight.abs().sum(),
        "norm_b": projection.bias.norm(),
        "norm_mask_token": predictor.mask_token.norm(),
        "l1_mask_token": predictor.mask_token.abs().sum(),
        "norm_gamma": encoder.norm.weight.norm(),
    }
    if noise is not None:
        gauges["norm_noise_projection"] = noise.weight.norm()
    return gauges


@torch.no_grad()
def noise_gauges(predictor: Predictor, features: Tensor) -> dict[str, Tensor]:
    """rms(A n) against rms(A s) and rms(ψ): is the noise heard, does it drown what it is put on?

    features: s, (…, D), the context encoder's. There are none without noise, or where its size
    differs from place to place. E|A n|² is known, so that nothing is drawn.
    """
    positions, projection = predictor.positions, predictor.predictor_embed
    matrix = positions.noise_matrix(projection)
    if positions.noise is None or matrix is None:
        return {}
    table = predictor.predictor_pos_embed
    noise = matrix.norm() / len(matrix) ** 0.5
    if positions.norm:
        features = F.layer_norm(features, features.shape[-1:])
    signal = rms(F.linear(features, projection.weight))
    return {"noise_over_signal": noise / signal, "noise_over_position": noise / rms(table)}


def by_block(errors: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and counts of errors (B, K, T) for each target block, (K,) each."""
    return errors.sum(dim=(0, 2)), torch.ones_like(errors).sum(dim=(0, 2))


def by_row(errors: Tensor, targets: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The same for each row of the grid, (rows,) each; targets: their places, (B, K, T)."""
    row = (targets // grid[1]).flatten()
    # Not index_add, whose order on a GPU, and so its last digits, are chance.
    there = row[:, None] == torch.arange(grid[0], device=row.device)
    sums = torch.where(there, errors.reshape(-1, 1), 0).sum(0)
    return sums, there.sum(0).to(errors.dtype)


def rms(x: Tensor) -> Tensor:
    return x.float().square().mean().sqrt()


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).norm()
