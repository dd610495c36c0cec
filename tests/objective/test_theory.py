"""The paper's propositions, numerically, with the real predictor and objective in float64."""

import math

import torch
from torch import Tensor

from flexpredict.model.draws import Draws
from flexpredict.model.masking import EvenMasks
from flexpredict.model.positions import StochasticPositions, sincos_positions
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View

GRID = (6, 6)


class _Signed(Draws):
    """The same noise with either sign: E[n] = 0 holds exactly over the pair."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign = sign

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(4)
        return self.sign * torch.randn(shape, generator=generator, dtype=like.dtype)


def _objective(noise_std: float, *, tied: bool = True) -> IJepa:
    torch.manual_seed(0)
    encoder = Encoder(dim=16, depth=2, heads=2, patch_size=2, image_size=12)
    positions = StochasticPositions(16, 8, noise_std, tied=tied)
    torch.manual_seed(1)
    predictor = Predictor(
        encoder_dim=16, output_dim=16, dim=8, depth=2, heads=2, grid=GRID, positions=positions
    )
    torch.manual_seed(2)
    objective = IJepa(encoder, predictor).double()
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad and "noise_projection" not in name:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return objective


def _gradient(objective: IJepa, weight: Tensor, draws: Draws) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(4, 3, 12, 12, generator=generator, dtype=torch.float64)
    objective.zero_grad()
    masks = EvenMasks(GRID).sample(4, generator)
    objective(images, [View(masks, draws)]).backward()
    assert weight.grad is not None
    return weight.grad.clone()


def test_untied__zero_is_a_stationary_point() -> None:
    """Proposition A.1: with a matrix of its own, the noise has no gradient at A = 0."""
    objective = _objective(0.5, tied=False)
    matrix = objective.predictor.positions.noise_projection
    assert matrix is not None
    torch.nn.init.zeros_(matrix.weight)
    plus, minus = (_gradient(objective, matrix.weight, _Signed(sign)) for sign in (1.0, -1.0))
    assert plus.abs().max() > 1e-6  # each draw pushes somewhere …
    assert (plus + minus).abs().max() < 1e-14  # … and in expectation nowhere


def test_tied__gradient_at_zero_is_the_deterministic_one() -> None:
    """Proposition 3.1: at A = 0 the tied loss pulls on A exactly as the deterministic loss does."""
    gradients = []
    for noise_std, sign in ((0.5, 1.0), (0.5, -1.0), (0.0, 1.0)):
        objective = _objective(noise_std)
        weight = objective.predictor.predictor_embed.weight
        torch.nn.init.zeros_(weight)
        gradients.append(_gradient(objective, weight, _Signed(sign)))
    plus, minus, deterministic = gradients
    assert deterministic.abs().max() > 1e-6
    assert (plus - deterministic).abs().max() > 1e-6
    assert ((plus + minus) / 2 - deterministic).abs().max() < 1e-14


def _posterior_mean(
    r: Tensor, places: Tensor, values: Tensor, prior: Tensor, precision: Tensor
) -> Tensor:
    """E[Y | R = r] = Σ p(x) φ(r − x) E[Y | x] / Σ p(x) φ(r − x), φ Gaussian with this precision."""
    offset = r[:, None] - places  # (n, places, dim)
    log_kernel = -0.5 * torch.einsum("npi,ij,npj->np", offset, precision, offset)
    weight = torch.softmax(log_kernel + prior.log(), dim=1)
    return weight @ values


def test_optimal_predictor__needs_the_prior_that_the_paper_leaves_out() -> None:
    """One axis: binned means against the normalised formula and the plain convolution."""
    places, std, draws = 12, 1.0, 2_000_000
    generator = torch.Generator().manual_seed(0)
    grid = torch.arange(places, dtype=torch.float64)
    values = torch.sin(grid * 0.8) + 0.2 * grid
    x = torch.randint(places, (draws,), generator=generator)
    r = x + std * torch.randn(draws, generator=generator, dtype=torch.float64)
    y = values[x] + 0.1 * torch.randn(draws, generator=generator, dtype=torch.float64)

    width = 0.05
    centres = torch.arange(-1.5, places + 0.5, 0.25, dtype=torch.float64)
    for centre in centres:
        inside = (r - centre).abs() < width / 2
        count = int(inside.sum())
        mean, error = float(y[inside].mean()), float(y[inside].std()) / math.sqrt(count)
        here = centre.view(1, 1)
        flat = torch.full((places,), 1 / places, dtype=torch.float64)
        normalised = _posterior_mean(
            here, grid[:, None], values, flat, torch.eye(1).double() / std**2
        ).item()
        density = torch.exp(-0.5 * ((centre - grid) / std) ** 2) / math.sqrt(2 * math.pi * std**2)
        convolution = float((density * values).sum())  # p(x | r) taken as N(r, std²)
        assert abs(mean - normalised) < 5 * error + 2e-3  # 2e-3: the bend inside a bin
        if 4 <= centre <= places - 5:
            assert abs(normalised - convolution) < 2e-3
        if centre <= 0 or centre >= places - 1:
            assert abs(normalised - convolution) > 0.05


def test_optimal_predictor__with_stop_noise_uses_the_mahalanobis_distance() -> None:
    """ψ̂ from the real module: the error of the formula is orthogonal to functions of ψ̂."""
    torch.manual_seed(0)
    dim, std, draws = 8, 0.6, 200_000
    psi = sincos_positions(4, 4, dim, dtype=torch.float64)
    projection = torch.nn.Linear(24, dim).double()
    torch.nn.init.normal_(projection.weight, std=0.25)
    stop = StochasticPositions(24, dim, std)
    values = torch.randn(16, dtype=torch.float64)
    skewed = torch.linspace(1, 6, 16, dtype=torch.float64)
    skewed /= skewed.sum()
    x = torch.multinomial(skewed, draws, replacement=True)
    with torch.no_grad():
        r = stop.masked(psi[x][None], projection, torch.zeros(dim).double())[0]
        weight = projection.weight
        precision = torch.linalg.inv(std**2 * weight @ weight.T)

    def worst(prior: Tensor, kernel: Tensor) -> float:
        """The largest correlation, in standard errors, of the error with functions of ψ̂."""
        error = values[x] - _posterior_mean(r, psi, values, prior, kernel)
        tests = torch.cat([torch.ones(draws, 1), r, r**2, torch.sin(2 * r)], 1).double()
        product = error[:, None] * tests
        return float((product.mean(0) / (product.std(0) / math.sqrt(draws))).abs().max())

    flat = torch.full((16,), 1 / 16, dtype=torch.float64)
    isotropic = torch.eye(dim).double() * precision.trace() / dim
    assert worst(skewed, precision) < 5
    assert worst(flat, precision) > 10  # the wrong prior shows
    assert worst(skewed, isotropic) > 10  # so does the wrong distance
