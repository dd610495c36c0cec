"""Every way to make noise against the distribution that it states."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from flexpredict.model.covariances import (
    Annealed,
    Conditioned,
    Coordinates,
    Covariance,
    LowRank,
    Scaled,
)
from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.model.positions import StochasticPositions, sincos_positions

D, P, STD = 12, 8, 0.3
ALL = get_args(Covariance)
WITHOUT_MATRIX = ("fixed", "coordinates")


class _Given(Draws):
    """Numbers that a test has chosen."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = numbers

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        del like
        assert shape == self.numbers.shape
        return self.numbers


def _stop(covariance: str, **options: Any) -> tuple[StochasticPositions, nn.Linear, Tensor]:
    """With learned parts away from where they start."""
    torch.manual_seed(0)
    projection = nn.Linear(D, P).double()
    nn.init.normal_(projection.weight, std=0.5)
    options = {"noise_std": STD, "noise_rank": 3, "noise_std_final": 0.9} | options
    stop = StochasticPositions(D, P, covariance=covariance, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in stop.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return stop, projection, torch.randn(P, dtype=torch.float64)


def _stated(stop: StochasticPositions, matrix: Tensor, context: Tensor) -> Tensor:
    """The covariance of a token's noise, from the formula of its docstring."""
    noise = stop.noise
    if stop.covariance == "fixed":
        return STD**2 * torch.eye(P).double()
    if stop.covariance == "diagonal":
        return STD**2 * torch.diag((matrix @ matrix.T).diagonal())
    inner, std = torch.eye(D).double(), STD
    if isinstance(noise, LowRank):
        inner = noise.directions @ noise.directions.T
    elif isinstance(noise, Conditioned):
        gains = torch.exp(torch.tanh(noise.gate @ context[0].mean(0)))
        assert gains.max() / gains.min() > 1.2
        inner = torch.diag(gains**2)
    elif isinstance(noise, Scaled):
        std *= noise.scale.item()
    elif isinstance(noise, Annealed):
        std += 0.25 * (0.9 - STD)
    return std**2 * matrix @ inner @ matrix.T


@pytest.mark.parametrize(
    ("covariance", "tied"),
    [("fixed", True), *((c, t) for c in ALL if c not in WITHOUT_MATRIX for t in (True, False))],
)
@torch.no_grad()
def test_noise__mean_and_covariance(covariance: str, tied: bool) -> None:
    draws = 200_000
    stop, projection, mask_token = _stop(covariance, tied=tied)
    stop.set_progress(0.25)
    psi = torch.randn(1, 1, P, dtype=torch.float64).expand(draws, 1, P)
    context = torch.randn(1, 5, P, dtype=torch.float64).expand(draws, 5, P)
    tokens = stop.masked(psi, projection, mask_token, context=context)
    sample = (tokens - psi - mask_token)[:, 0]
    true = _stated(stop, (stop.noise_projection or projection).weight, context)
    assert (sample.mean(0).abs() < 5 * (true.diagonal() / draws).sqrt()).all()
    # The variance of a sample covariance of Gaussians: (Σij² + Σii Σjj) / n.
    error = ((true**2 + true.diagonal()[:, None] * true.diagonal()) / draws).sqrt()
    assert ((sample.T @ sample / draws - true).abs() < 5 * error).all()


@torch.no_grad()
def test_coordinates__mean_and_covariance() -> None:
    """Each channel is cos(a·δ + θ) of a Gaussian shift δ: its moments are known."""
    draws, place = 400_000, (3.0, 2.0)  # column, row
    stop, projection, _ = _stop("coordinates", noise_std=1.0)
    assert isinstance(stop.noise, Coordinates)
    spread = stop.noise.spread.view(2, 2)
    assert (spread - torch.eye(2)).abs().min() > 0.05
    shift_covariance = spread @ spread.T
    psi = sincos_positions(4, 5, P, dtype=torch.float64)[2 * 5 + 3].expand(draws, 1, P)
    sample = stop.masked(psi, projection, torch.zeros(P).double())[:, 0]

    axis = torch.arange(P) // (P // 2)  # columns, then rows
    rate = 10_000.0 ** -(torch.arange(P // 4).double() / (P // 4)).repeat(4)
    direction = nn.functional.one_hot(axis, 2) * rate[:, None]  # a, (P, 2)
    is_sine = torch.arange(P) % (P // 2) < P // 4
    phase = torch.tensor(place).double()[axis] * rate - is_sine * math.pi / 2  # θ

    def mean(a: Tensor, theta: Tensor) -> Tensor:
        """E cos(a·δ + θ)"""
        return theta.cos() * torch.exp(-0.5 * torch.einsum("...i,ij,...j", a, shift_covariance, a))

    first = mean(direction, phase)
    plus = mean(direction[:, None] + direction, phase[:, None] + phase)
    minus = mean(direction[:, None] - direction, phase[:, None] - phase)
    second = (plus + minus) / 2
    assert ((sample.mean(0) - first).abs() < 5 * sample.std(0) / math.sqrt(draws)).all()
    products = sample[:, :, None] * sample[:, None]
    error = products.std(0) / math.sqrt(draws)
    assert ((products.mean(0) - second).abs() < 5 * error + 1e-12).all()
    assert (sample - psi[0]).abs().max() > 0.5  # it does move


@torch.no_grad()
def test_coordinates__are_sincos_of_the_shifted_place() -> None:
    stop, projection, _ = _stop("coordinates")
    assert isinstance(stop.noise, Coordinates)
    numbers = torch.randn(6, 20, 2, dtype=torch.float64)
    psi = sincos_positions(4, 5, P, dtype=torch.float64).expand(6, 20, P)
    tokens = stop.masked(psi, projection, torch.zeros(P).double(), _Given(numbers))
    shift = STD * torch.einsum("ij,btj->bti", stop.noise.spread.view(2, 2), numbers)
    for image in range(6):
        for patch in range(20):
            column = patch % 5 + shift[image, patch, 0].item()
            row = patch // 5 + shift[image, patch, 1].item()
            expected = [
                function(coordinate * 10_000 ** (-k / (P // 4)))
                for coordinate in (column, row)
                for function in (math.sin, math.cos)
                for k in range(P // 4)
            ]
            true = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(tokens[image, patch], true, rtol=0, atol=1e-12)


def test_appearance__is_shared_by_the_tokens_of_a_block_and_by_no_others() -> None:
    stop, projection, mask_token = _stop("appearance")
    psi = torch.randn(3000, 2, 4, P, dtype=torch.float64)
    with torch.no_grad():
        noise = stop.masked(psi, projection, mask_token) - psi - mask_token
    torch.testing.assert_close(noise, noise[:, :, :1].expand_as(noise))
    blocks = noise[:, :, 0]
    correlation = torch.corrcoef(torch.cat([blocks[:, 0], blocks[:, 1]], 1).T)[:P, P:]
    assert correlation.abs().max() < 5 / math.sqrt(3000)


def test_low_rank__has_its_rank_and_is_stop_at_full_rank() -> None:
    stop, projection, _ = _stop("low-rank", noise_rank=3)
    assert isinstance(stop.noise, LowRank)
    assert torch.linalg.matrix_rank(projection.weight @ stop.noise.directions) == 3
    whole, _, _ = _stop("low-rank", noise_rank=D)
    assert isinstance(whole.noise, LowRank)
    directions = whole.noise.directions
    torch.testing.assert_close(directions @ directions.T, torch.eye(D).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("covariance", ["scaled", "conditioned", "annealed"])
def test_learned__starts_as_stop(covariance: str) -> None:
    psi, context = torch.randn(4, 2, 3, P), torch.randn(4, 5, P)
    projection, mask_token = nn.Linear(D, P), torch.randn(P)
    tokens = []
    for name in ("projected", covariance):
        stop = StochasticPositions(D, P, STD, covariance=name)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(1)
        draws = Draws([ChunkPart(generator, 4, 0, 4)])
        tokens.append(stop.masked(psi, projection, mask_token, draws, context))
    torch.testing.assert_close(*tokens, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("covariance", ALL)
def test_zero__is_the_deterministic_baseline(covariance: str) -> None:
    stop, projection, mask_token = _stop(covariance, noise_std=0.0, noise_std_final=0.0)
    assert not list(stop.parameters())
    psi = torch.randn(4, 2, 3, P).double()
    assert torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)


def test_zero__where_a_learned_or_annealed_scale_is_zero() -> None:
    psi = sincos_positions(4, 5, P, dtype=torch.float64).expand(3, 20, P)
    stop, projection, mask_token = _stop("coordinates")
    assert isinstance(stop.noise, Coordinates)
    nn.init.zeros_(stop.noise.spread)
    assert torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)
    stop, projection, mask_token = _stop("annealed", noise_std_final=0.0)
    assert not torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)
    stop.set_progress(1.0)
    assert torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)
    stop, projection, mask_token = _stop("annealed", noise_std=0.0, noise_std_final=0.5)
    assert torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)
    stop.set_progress(0.5)
    assert not torch.equal(stop.masked(psi, projection, mask_token), psi + mask_token)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("covariance", ALL)
def test_gradients__reach_what_is_learned(covariance: str, tied: bool) -> None:
    if not tied and covariance in WITHOUT_MATRIX:
        with pytest.raises(
            ValueError, match=f"{covariance} noise has no matrix to untie: set tied=True"
        ):
            _stop(covariance, tied=False)
        return
    stop, projection, mask_token = _stop(covariance, tied=tied)
    context = torch.randn(4, 5, P).double()
    psi = torch.randn(4, 2, 3, P).double().requires_grad_()
    stop.masked(psi, projection, mask_token, context=context).square().sum().backward()
    for name, parameter in stop.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    through_A = tied and covariance not in WITHOUT_MATRIX
    assert (projection.weight.grad is not None) is through_A
    learned = {"scaled": 1, "conditioned": 1, "coordinates": 1}.get(covariance, 0)
    assert len(list(stop.parameters())) == learned + (not tied)


@pytest.mark.parametrize("covariance", ALL)
def test_draws__parts_of_a_batch_get_the_noise_of_the_whole(covariance: str) -> None:
    stop, projection, mask_token = _stop(covariance, noise_on="both")
    features, context_psi = torch.randn(6, 5, D).double(), torch.randn(6, 5, P).double()
    psi = torch.randn(6, 2, 3, P).double()

    def tokens(start: int, stop_: int) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        draws = Draws([ChunkPart(generator, 6, start, stop_ - start)])
        some = slice(start, stop_)
        context = stop.context(features[some], context_psi[some], projection, draws)
        masked = stop.masked(psi[some], projection, mask_token, draws, context)
        return torch.cat([context, masked.flatten(1, 2)], dim=1)

    torch.testing.assert_close(torch.cat([tokens(0, 2), tokens(2, 6)]), tokens(0, 6))


def test_wrong_use__gets_one_sentence() -> None:
    psi, projection, mask_token = torch.randn(2, 3, P), nn.Linear(D, P), torch.zeros(P)
    with pytest.raises(ValueError, match="hand the context tokens to masked"):
        StochasticPositions(D, P, covariance="conditioned").masked(psi, projection, mask_token)
    with pytest.raises(ValueError, match="noise_rank=13 does not fit: choose 1 to 12"):
        StochasticPositions(D, P, covariance="low-rank", noise_rank=13)
    with pytest.raises(ValueError, match="noise_std_final is a standard deviation, at least 0"):
        StochasticPositions(D, P, covariance="annealed", noise_std_final=-1)
    with pytest.raises(ValueError, match="covariance='round' is not known: choose one of proj"):
        StochasticPositions(D, P, covariance="round")  # type: ignore[arg-type]


@pytest.mark.parametrize("covariance", ALL)
def test_noise_matrix__has_the_covariance_of_what_is_added(covariance: str) -> None:
    stop, projection, _ = _stop(covariance)
    matrix = stop.noise_matrix(projection)
    if covariance in ("coordinates", "conditioned"):  # it depends on the place, or on the image
        assert matrix is None
        return
    assert matrix is not None
    with torch.no_grad():
        blocks = torch.zeros(1, 60_000, 1, P, dtype=matrix.dtype)  # of one token each
        drawn = stop.masked(blocks, projection, blocks[:, :1])[0, :, 0]
        expected = matrix @ matrix.T
    room = 6 * float(expected.diagonal().max()) * math.sqrt(2 / len(drawn))
    torch.testing.assert_close(drawn.T.cov(), expected, rtol=0, atol=room)
    assert float(expected.norm()) > 0


def test_noise_matrix__without_noise_is_zero() -> None:
    stop = StochasticPositions(D, P, 0.0)
    matrix = stop.noise_matrix(nn.Linear(D, P))
    assert matrix is not None
    assert not matrix.any()
