"""How the noise of a token is distributed: StoP's way, the paper's fixed one, and beyond the paper.

Each way is a small module that says what is added to the tokens at some positions ψ,

    noise(positions, matrix, std, draws, context)    (B, …, P) -> (B, …, P)

where M, the matrix (P, D), is the projection A of the context features, or the noise's own where it
is untied; n is standard normal, another one for every token unless said otherwise; context is what
the predictor is told, (B, C, P). Where training can silence the noise other than by M → 0, it is
said.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.draws import Draws

Covariance = Literal[
    "projected",
    "fixed",
    "diagonal",
    "low-rank",
    "coordinates",
    "scaled",
    "conditioned",
    "annealed",
    "appearance",
]


class Noise(nn.Module):
    """std · M n with n in R^D: covariance std² M Mᵀ. With M = A it is StoP's; others change a part.

    width: how many numbers are drawn for a token. product: whether a matrix is applied to them.
    """

    product = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(
        self, positions: Tensor, matrix: Tensor, std: float, draws: Draws, context: Tensor | None
    ) -> Tensor:
        sample = self.sample(positions, std, draws, context)
        return F.linear(sample.to(matrix.dtype), matrix)

    def sample(self, positions: Tensor, std: float, draws: Draws, context: Tensor | None) -> Tensor:
        """What the matrix is applied to, (B, …, width)."""
        del context
        return draws.normal(*positions.shape[:-1], self.width, like=positions) * std


class Fixed(Noise):
    """std · n with n in R^P: covariance std² I (Figure 3). Nothing can silence it."""

    product = False

    def forward(
        self, positions: Tensor, matrix: Tensor, std: float, draws: Draws, context: Tensor | None
    ) -> Tensor:
        del matrix
        return self.sample(positions, std, draws, context)


class Diagonal(Noise):
    """std · |M| n with n in R^P and |M| the norms of M's rows: covariance std² diag(M Mᵀ).

    Every channel has the variance that StoP would give it, and channels are independent.
    """

    product = False

    def forward(
        self, positions: Tensor, matrix: Tensor, std: float, draws: Draws, context: Tensor | None
    ) -> Tensor:
        return self.sample(positions, std, draws, context) * matrix.norm(dim=1)


class LowRank(Noise):
    """std · M Q n with n in R^r: covariance std² M Q Qᵀ Mᵀ, of rank r.

    Q (D, r) is drawn with the weights and stays: orthogonal columns of norm √(D / r), so that over
    draws of Q the covariance is StoP's on average, and is StoP's at r = D. To silence the noise,
    A has to drop r directions of the features.
    """

    directions: Tensor

    def __init__(self, encoder_dim: int, rank: int) -> None:
        super().__init__(rank)
        if not 1 <= rank <= encoder_dim:
            raise ValueError(
                f"noise_rank={rank} does not fit: choose 1 to {encoder_dim}, the features' width"
            )
        self.register_buffer("directions", torch.empty(encoder_dim, rank))
        self.init_weights()

    def init_weights(self) -> None:
        dim, rank = self.directions.shape
        nn.init.orthogonal_(self.directions, gain=math.sqrt(dim / rank))

    def forward(
        self, positions: Tensor, matrix: Tensor, std: float, draws: Draws, context: Tensor | None
    ) -> Tensor:
        sample = self.sample(positions, std, draws, context)
        return F.linear(sample.to(matrix.dtype), matrix @ self.directions.to(matrix.dtype))


class Coordinates(Noise):
    """ψ(x + std · L n) − ψ(x) with n in R² and a learned L (2, 2), x = (column, row) in patches.

    The place itself is noisy, before sin-cos: its covariance is std² L Lᵀ. It starts at L = I, and
    L → 0 silences it. The positions have to be sin-cos: what a shift does to them is a rotation of
    each frequency's sine and cosine, so that the places need not be known.
    """

    product = False
    rates: Tensor

    def __init__(self, predictor_dim: int) -> None:
        super().__init__(2)
        self.spread = nn.Parameter(torch.eye(2).flatten())  # a vector: weight decay leaves it alone
        # float64, so that a module in any precision has the rates of its table.
        self.register_buffer("rates", sincos_rates(predictor_dim), persistent=False)

    def forward(
        self, positions: Tensor, matrix: Tensor, std: float, draws: Draws, context: Tensor | None
    ) -> Tensor:
        del matrix
        # Not a matrix product: autocast would round the shift to three digits.
        sample = self.sample(positions, std, draws, context)
        shift = (self.spread.view(2, 2) * sample[..., None, :]).sum(-1)  # (B, …, 2)
        angle = shift[..., None] * self.rates.to(shift.dtype)  # (B, …, 2, P / 4)
        sine, cosine = positions.unflatten(-1, (2, 2, -1)).unbind(-2)
        turned = [
            sine * angle.cos() + cosine * angle.sin(),
            cosine * angle.cos() - sine * angle.sin(),
        ]
        return torch.stack(turned, dim=-2).flatten(-3) - positions


class Scaled(Noise):
    """std · s · M n with n in R^D and a learned s: covariance (std s)² M Mᵀ.

    It starts as StoP, at s = 1; s → 0 silences it.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.ones(1))

    def sample(self, positions: Tensor, std: float, draws: Draws, context: Tensor | None) -> Tensor:
        return super().sample(positions, std, draws, context) * self.scale


class Conditioned(Noise):
    """std · M (g ⊙ n) with n in R^D and g = exp(tanh(G c̄)): covariance std² M diag(g²) Mᵀ.

    c̄ is the mean of the image's context tokens, G (D, P) is learned. It starts as StoP, at G = 0;
    each direction of the features gets from 1/e to e times the noise, so G cannot silence it.
    """

    def __init__(self, width: int, predictor_dim: int) -> None:
        super().__init__(width)
        self.gate = nn.Parameter(torch.zeros(width, predictor_dim))

    def sample(self, positions: Tensor, std: float, draws: Draws, context: Tensor | None) -> Tensor:
        if context is None:
            raise ValueError(
                "conditioned noise needs to know the context: hand the context tokens to masked()"
            )
        if context.shape[-1] != self.gate.shape[1]:
            raise ValueError(
                f"context tokens have {context.shape[-1]} numbers, not {self.gate.shape[1]}: hand "
                f"masked() what context() gave, not the encoder's features"
            )
        gain = F.linear(context.mean(1).to(self.gate.dtype), self.gate).tanh().exp()  # (B, D)
        gain = gain.view(len(gain), *[1] * (positions.ndim - 2), self.width)
        return super().sample(positions, std, draws, context) * gain


class Annealed(Noise):
    """s · M n with n in R^D, s = std + share · (final − std): covariance s² M Mᵀ.

    share, from 0 to 1, is how much of the run is done. It lies on the device, where a step that was
    captured as a graph reads it; it is a function of the step, so no checkpoint holds it.
    """

    share: Tensor

    def __init__(self, width: int, final: float) -> None:
        super().__init__(width)
        self.final = final
        self.register_buffer("share", torch.zeros(()), persistent=False)

    def sample(self, positions: Tensor, std: float, draws: Draws, context: Tensor | None) -> Tensor:
        now = std + self.share * (self.final - std)
        return super().sample(positions, 1.0, draws, context) * now


class Appearance(Noise):
    """std · M n with one n in R^D for all tokens of a block, whose places stay sure.

    A block is the last axis but one: (B, K, T, P) has B · K of them. Each token has StoP's
    covariance std² M Mᵀ, which is also that between two tokens of a block: what is unknown is what
    the block looks like, m̃ + M n, not where its tokens are.
    """

    def sample(self, positions: Tensor, std: float, draws: Draws, context: Tensor | None) -> Tensor:
        return super().sample(positions[..., :1, :], std, draws, context)


def noise_of(
    covariance: Covariance, encoder_dim: int, predictor_dim: int, rank: int, final: float
) -> Noise:
    """The module of a name. rank: of `low-rank`; final: where the std of `annealed` ends."""
    match covariance:
        case "projected":
            return Noise(encoder_dim)
        case "fixed":
            return Fixed(predictor_dim)
        case "diagonal":
            return Diagonal(predictor_dim)
        case "low-rank":
            return LowRank(encoder_dim, rank)
        case "coordinates":
            return Coordinates(predictor_dim)
        case "scaled":
            return Scaled(encoder_dim)
        case "conditioned":
            return Conditioned(encoder_dim, predictor_dim)
        case "annealed":
            return Annealed(encoder_dim, final)
        case "appearance":
            return Appearance(encoder_dim)
    raise ValueError(
        f"covariance={covariance!r} is not known: choose one of {', '.join(get_args(Covariance))}"
    )


def sincos_rates(dim: int) -> Tensor:
    """The frequencies of sin-cos positions of this width, (dim / 4,), float64."""
    if dim % 4:
        raise ValueError(f"sin-cos positions need a width that is a multiple of 4, not {dim}")
    return 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
