"""Where a token is: fixed sin-cos positions, learned ones, and StoP's stochastic ones.

StoP in one line: the position of a masked token is ψ̂ = ψ + A n with n ~ N(0, noise_std² I), and A
is the very matrix that projects the context features, so that silencing the noise by A → 0 would
silence the context too. What n is multiplied with is in covariances.py, other ways included.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.covariances import Annealed, Covariance, LowRank, noise_of, sincos_rates
from flexpredict.model.draws import Draws, Units

NoiseOn = Literal["masked", "context", "both"]
Form = Literal["paper", "released"]


def sincos_positions(
    height: int, width: int, dim: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The 2-D sin-cos table of a grid, (height · width, dim), rows of the grid one after another.

    The first half of the channels encodes the column, the second half the row; each half is
    dim/4 sines, then dim/4 cosines, with frequencies 10000^(−k / (dim/4)). Every row has norm
    √(dim/2).
    """
    rate = sincos_rates(dim)

    def encode(coordinate: Tensor) -> Tensor:  # (N,) -> (N, dim / 2)
        angle = coordinate[:, None] * rate
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    row, column = torch.meshgrid(
        torch.arange(height, dtype=torch.float64),
        torch.arange(width, dtype=torch.float64),
        indexing="ij",
    )
    return torch.cat([encode(column.flatten()), encode(row.flatten())], dim=1).to(dtype)


class StochasticPositions(nn.Module):
    """Makes a predictor's input tokens, with StoP's noise on their positions.

    The projection (A, b) and the mask token m̃ stay where they are, in your model: this module is
    handed them, which is what ties the noise to A. With `noise_std=0` the tokens are those of a
    deterministic predictor.

    Noise is drawn in eval() as in training, another one for every image, block and token of the
    positions (B, …, P); noise_std=0 is deterministic.

    encoder_dim: D, the width of the features, in which the noise is drawn.
    predictor_dim: P, the width of the tokens.
    noise_std: the standard deviation of n. The paper's σ is its square (docs/fidelity.md, 1).
    noise_on: which tokens get noise; "masked" is StoP, the others are rows of Table 7.
    tied: False gives the noise a matrix of its own, a weight of this module, which training shrinks
        (Prop. A.1).
    covariance: how the noise is distributed; "fixed" leaves A out (Figure 3), the others are
        beyond the paper (covariances.py).
    noise_rank: the rank of covariance="low-rank".
    noise_std_final: what noise_std becomes over the run with covariance="annealed".
    form: "paper" is ψ + A n + m̃; "released" is ψ + A n + b, as the released code runs.
    norm: a non-affine LayerNorm on the features before A, so that A cannot shrink while the
        encoder's last scale γ grows.
    dropout, l1, l2: rivals of the noise: dropout on the projected context features, and penalties
        l1 · Σ|A| + l2 · Σ A², which `penalty` gives and a loss has to add.
    """

    def __init__(
        self,
        encoder_dim: int,
        predictor_dim: int,
        noise_std: float = 0.25,
        *,
        noise_on: NoiseOn = "masked",
        tied: bool = True,
        covariance: Covariance = "projected",
        noise_rank: int = 16,
        noise_std_final: float = 0.0,
        form: Form = "paper",
        norm: bool = False,
        dropout: float = 0.0,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        for name, std in (("noise_std", noise_std), ("noise_std_final", noise_std_final)):
            if not 0 <= std < math.inf:
                raise ValueError(f"{name} is a standard deviation, at least 0, not {std}")
        self.shape = torch.Size((predictor_dim, encoder_dim))  # of A
        noisy = noise_std > 0 or (covariance == "annealed" and noise_std_final > 0)
        self.noise_std = noise_std
        self.noise_on_masked = noisy and noise_on in ("masked", "both")
        self.noise_on_context = noisy and noise_on in ("context", "both")
        self.covariance = covariance
        self.form = form
        self.norm = norm
        self.dropout = dropout
        self.l1, self.l2 = l1, l2
        self.noise_projection: nn.Linear | None = None
        if not tied and covariance in ("fixed", "coordinates"):
            raise ValueError(f"{covariance} noise has no matrix to untie: set tied=True")
        if not tied and noisy:
            self.noise_projection = nn.Linear(encoder_dim, predictor_dim, bias=False)
        noise = noise_of(covariance, encoder_dim, predictor_dim, noise_rank, noise_std_final)
        self.noise = noise if noisy else None

    def init_weights(self) -> None:
        """Draws anew what only the noise has, but for `noise_projection`, a Linear like others."""
        if isinstance(self.noise, LowRank):
            self.noise.init_weights()

    def set_progress(self, share: float) -> None:
        """Says how much of the run is done, from 0 to 1, before a step. Waits for no device."""
        if isinstance(self.noise, Annealed):
            self.noise.share.fill_(share)

    def context(
        self, features: Tensor, positions: Tensor, projection: nn.Linear, draws: Draws | None = None
    ) -> Tensor:
        """A s + b + ψ: the tokens of what the encoder saw. (B, C, D) and (B, C, P) -> (B, C, P)"""
        self._check(positions, projection)
        draws = draws or Draws()
        if self.norm:
            features = F.layer_norm(features, features.shape[-1:])
        projected = projection(features)
        if self.dropout and self.training:
            kept = draws.uniform(*projected.shape, like=projected) >= self.dropout
            projected = projected * kept / (1 - self.dropout)
        tokens = projected + positions
        if self.noise_on_context:  # Table 7
            if positions.shape[:-1] != features.shape[:-1]:
                raise ValueError(
                    f"positions of shape {tuple(positions.shape)} for features of shape "
                    f"{tuple(features.shape)}: every image has noise of its own, so expand them"
                )
            tokens = tokens + self._noise(positions, projection, draws, tokens)
        return tokens

    def masked(
        self,
        positions: Tensor,
        projection: nn.Linear,
        mask_token: Tensor,
        draws: Draws | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """ψ + A n + m̃: the tokens to be predicted. (B, …, P) -> (B, …, P)

        positions: of every image; a table (1, N, P) gets one draw, which all would share.
        context: the tokens of what the encoder saw, which conditioned noise depends on.
        """
        self._check(positions, projection)
        if not self.noise_on_masked:
            return positions + mask_token
        noisy = positions + self._noise(positions, projection, draws or Draws(), context)
        if self.form == "released":
            if projection.bias is None:
                raise ValueError("form='released' puts b in place of m̃: give a Linear with a bias")
            return noisy + projection.bias  # b stands in for m̃, docs/fidelity.md, 2
        return noisy + mask_token

    def _check(self, positions: Tensor, projection: nn.Linear) -> None:
        width, features = self.shape
        found = getattr(getattr(projection, "weight", None), "shape", None)
        if found != self.shape:
            raise ValueError(
                f"the projection has to be a Linear from {features} to {width} numbers, but "
                f"{'it is none' if found is None else f'its weight is {tuple(found)}'}"
            )
        if positions.shape[-1] != width:
            raise ValueError(
                f"positions have {positions.shape[-1]} numbers and the predictor's tokens {width}: "
                f"give the positions of the predictor, not of the encoder"
            )

    def penalty(self, projection: nn.Linear) -> Tensor:
        """What the size of A costs."""
        cost = projection.weight.new_zeros(())
        if self.l1:
            cost = cost + self.l1 * projection.weight.abs().sum()
        if self.l2:
            cost = cost + self.l2 * projection.weight.square().sum()
        return cost

    def noise_matrix(self, projection: nn.Linear) -> Tensor | None:
        """What standard normal numbers are multiplied with to be added to positions, (P, …).

        None where noise is not linear in them, or not the same at all places.
        """
        matrix = (self.noise_projection or projection).weight
        if self.noise is None:
            return torch.zeros_like(matrix)
        if self.covariance in ("coordinates", "conditioned"):
            return None
        tokens = matrix.new_zeros(self.noise.width, len(matrix))
        added: Tensor = self.noise(tokens, matrix, self.noise_std, Units(), None)
        return added.T

    def _noise(
        self, positions: Tensor, projection: nn.Linear, draws: Draws, context: Tensor | None
    ) -> Tensor:
        assert self.noise is not None
        if positions.ndim < 3:  # all images would share their noise
            raise ValueError(
                f"positions of shape {tuple(positions.shape)}: every image has noise of its own, "
                f"so expand them to (B, tokens, {self.shape[0]})"
            )
        matrix = (self.noise_projection or projection).weight
        return self.noise(positions, matrix, self.noise_std, draws, context)

    def extra_repr(self) -> str:
        on = {(True, False): "masked", (False, True): "context", (True, True): "both"}
        where = on.get((self.noise_on_masked, self.noise_on_context), "nothing")
        return f"noise_std={self.noise_std}, noise on {where}, {self.covariance}, form={self.form}"
