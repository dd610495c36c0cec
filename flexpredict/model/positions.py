"""Where a token is: fixed sin-cos positions, learned ones, and StoP's stochastic ones.

StoP in one line: the position of a masked token is ψ̂ = ψ + A n with n ~ N(0, noise_std² I), and A
is the very matrix that projects the context features, so that silencing the noise by A → 0 would
silence the context too.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.draws import Draws

NoiseOn = Literal["masked", "context", "both"]
Covariance = Literal["projected", "fixed"]
Form = Literal["paper", "released"]


def sincos_positions(
    height: int, width: int, dim: int, *, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The 2-D sin-cos table of a grid, (height · width, dim), rows of the grid one after another.

    The first half of the channels encodes the column, the second half the row; each half is
    dim/4 sines, then dim/4 cosines, with frequencies 10000^(−k / (dim/4)). Every row has norm
    √(dim/2).
    """
    if dim % 4:
        raise ValueError(f"sin-cos positions need a width that is a multiple of 4, not {dim}")
    rate = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))

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

    encoder_dim: D, the width of the features, in which the noise is drawn.
    predictor_dim: P, the width of the tokens.
    noise_std: the standard deviation of n. The paper's σ is its square (docs/fidelity.md, 1).
    noise_on: which tokens get noise; "masked" is StoP, the others are rows of Table 7.
    tied: False gives the noise a matrix of its own, which training drives to zero (Prop. A.1).
    covariance: "fixed" draws the noise in predictor width and leaves A out (Figure 3).
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
        form: Form = "paper",
        norm: bool = False,
        dropout: float = 0.0,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        if noise_std < 0:
            raise ValueError(f"noise_std is a standard deviation, at least 0, not {noise_std}")
        self.noise_std = noise_std
        self.noise_on_masked = noise_std > 0 and noise_on in ("masked", "both")
        self.noise_on_context = noise_std > 0 and noise_on in ("context", "both")
        self.covariance = covariance
        self.form = form
        self.norm = norm
        self.dropout = dropout
        self.l1, self.l2 = l1, l2
        self.noise_dim = encoder_dim if covariance == "projected" else predictor_dim
        self.noise_projection: nn.Linear | None = None
        if not tied and covariance == "fixed":
            raise ValueError("a fixed covariance has no matrix to untie: set tied=True")
        if not tied and noise_std > 0:
            self.noise_projection = nn.Linear(encoder_dim, predictor_dim, bias=False)

    def context(
        self, features: Tensor, positions: Tensor, projection: nn.Linear, draws: Draws | None = None
    ) -> Tensor:
        """A s + b + ψ: the tokens of what the encoder saw. (B, C, D) and (B, C, P) -> (B, C, P)"""
        draws = draws or Draws()
        if self.norm:
            features = F.layer_norm(features, features.shape[-1:])
        projected = projection(features)
        if self.dropout and self.training:
            kept = draws.uniform(*projected.shape, like=projected) >= self.dropout
            projected = projected * kept / (1 - self.dropout)
        tokens = projected + positions
        if self.noise_on_context:  # Table 7
            tokens = tokens + self._noise(positions, projection, draws)
        return tokens

    def masked(
        self,
        positions: Tensor,
        projection: nn.Linear,
        mask_token: Tensor,
        draws: Draws | None = None,
    ) -> Tensor:
        """ψ + A n + m̃: the tokens to be predicted. (B, …, P) -> (B, …, P)"""
        if not self.noise_on_masked:
            return positions + mask_token
        noisy = positions + self._noise(positions, projection, draws or Draws())
        if self.form == "released":
            assert projection.bias is not None
            return noisy + projection.bias  # b stands in for m̃, docs/fidelity.md, 2
        return noisy + mask_token

    def penalty(self, projection: nn.Linear) -> Tensor:
        """What the size of A costs."""
        cost = projection.weight.new_zeros(())
        if self.l1:
            cost = cost + self.l1 * projection.weight.abs().sum()
        if self.l2:
            cost = cost + self.l2 * projection.weight.square().sum()
        return cost

    def _noise(self, positions: Tensor, projection: nn.Linear, draws: Draws) -> Tensor:
        noise = draws.normal(*positions.shape[:-1], self.noise_dim, like=positions) * self.noise_std
        if self.covariance == "fixed":
            return noise
        return F.linear(noise, (self.noise_projection or projection).weight)

    def extra_repr(self) -> str:
        on = {(True, False): "masked", (False, True): "context", (True, True): "both"}
        where = on.get((self.noise_on_masked, self.noise_on_context), "nothing")
        return f"noise_std={self.noise_std}, noise on {where}, {self.covariance}, form={self.form}"
