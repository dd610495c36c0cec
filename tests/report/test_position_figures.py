"""Numbers about A and about noisy positions, against cases whose answers are known."""

import math

import pytest
import torch

from flexpredict.health.gauges import effective_rank
from flexpredict.model.positions import sincos_positions
from flexpredict.report.analysis import positions
from flexpredict.report.analysis.grid import distances, neighbours


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_grid__distances_and_neighbours() -> None:
    apart, touching = distances((3, 4)), neighbours((3, 4))
    assert apart[0, 11] == pytest.approx(math.hypot(2, 3))  # corner to corner
    assert touching.sum(1).tolist() == [3, 5, 5, 3, 5, 8, 8, 5, 3, 5, 5, 3]
    assert not touching.diagonal().any()
    assert touching[0].nonzero().flatten().tolist() == [1, 4, 5]


def test_displacement__without_noise_is_zero() -> None:
    psi = sincos_positions(5, 7, 32, dtype=torch.float64)
    still = positions.displacement(psi, (5, 7), torch.zeros(32, 16).double(), 8, _generator())
    assert (still.nearest_is_query, still.patches) == (1, 0)
    maps = positions.similarity(psi, 17, torch.zeros(32, 16).double(), 8, _generator())
    torch.testing.assert_close(maps.draw, maps.deterministic)
    torch.testing.assert_close(maps.mean, maps.deterministic)
    assert maps.deterministic.argmax() == 17
    assert maps.deterministic[17] == pytest.approx(1)


def test_displacement__a_push_towards_one_patch() -> None:
    """Four orthogonal positions, noise along the first: half of the draws land there."""
    noise = torch.tensor([[1e6], [0], [0], [0]]).double()
    found = positions.displacement(torch.eye(4).double(), (2, 2), noise, 20_000, _generator())
    room = 5 * 0.5 / math.sqrt(20_000 * 4)
    assert found.nearest_is_query == pytest.approx(1 / 2, abs=room)
    # The first itself is pushed to its neighbour by the other half.
    assert found.patches == pytest.approx((1 + 1 + 1 + math.sqrt(2)) / 8, abs=room * math.sqrt(2))


def test_displacement__of_an_untrained_a_as_the_spec_has_it() -> None:
    """ViT-B's shapes, noise_std 0.25: no draw leaves its patch until A has grown (spec 1.5)."""
    psi = sincos_positions(14, 14, 384, dtype=torch.float32)
    noise = 0.25 * 0.02 * torch.randn(384, 768, generator=torch.Generator().manual_seed(1))
    first = positions.displacement(psi, (14, 14), noise, 64, _generator())
    grown = positions.displacement(psi, (14, 14), 8 * noise, 64, _generator())
    assert (first.nearest_is_query, first.patches) == (1, 0)
    assert grown.nearest_is_query == pytest.approx(0.54, abs=0.03)
    assert grown.patches > 0.4


def test_similarity__is_the_cosine_with_the_mean_over_draws() -> None:
    psi = sincos_positions(3, 3, 8, dtype=torch.float64)
    noise = torch.randn(8, 4, generator=_generator(), dtype=torch.float64)
    maps = positions.similarity(psi, 4, noise, 3, torch.Generator().manual_seed(5))
    normal = torch.randn(3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    cosines = []
    for n in normal:
        noisy = psi[4] + noise @ n
        cosines.append([noisy @ p / (noisy.norm() * p.norm()) for p in psi])
    direct = torch.tensor(cosines, dtype=torch.float64)
    torch.testing.assert_close(maps.draw, direct[0])
    torch.testing.assert_close(maps.mean, direct.mean(0))


def test_spectrum__and_effective_rank_of_known_matrices() -> None:
    orthogonal, _ = torch.linalg.qr(torch.randn(12, 12, generator=_generator()).double())
    assert effective_rank(positions.spectrum(3 * orthogonal)) == pytest.approx(12)
    torch.testing.assert_close(positions.spectrum(3 * orthogonal), torch.full((12,), 9.0).double())
    single = torch.outer(torch.arange(1.0, 7), torch.arange(1.0, 4))
    assert effective_rank(positions.spectrum(single)) == pytest.approx(1)
    tall = torch.randn(9, 4, generator=_generator()).double()
    found = positions.spectrum(tall)
    direct = torch.linalg.eigvalsh(tall @ tall.T).flip(0).clamp(min=0)
    torch.testing.assert_close(found, direct, atol=1e-10, rtol=1e-8)


def test_variance_by_frequency__columns_first_and_frequencies_in_order() -> None:
    """Rows of A are scaled where ψ changes with the column, and with the highest frequency."""
    dim = 16
    changes = sincos_positions(1, 5, dim).var(0) > 0  # the channels of the column
    matrix = torch.where(changes, 2.0, 1.0)[:, None] * torch.eye(dim)
    found = positions.variance_by_frequency(matrix)
    assert found.tolist() == [[4.0] * 4, [1.0] * 4]
    fastest = sincos_positions(1, 3, dim, dtype=torch.float64).diff(dim=0).abs().amax(0)
    matrix = torch.where(fastest > 0.5, 3.0, 1.0)[:, None] * torch.eye(dim)
    assert positions.variance_by_frequency(matrix).tolist() == [[9.0, 1, 1, 1], [1.0] * 4]


def test_correlations__of_equal_opposite_and_unrelated_rows() -> None:
    matrix = torch.tensor([[1.0, 0, 0], [5, 0, 0], [-2, 0, 0], [0, 1, 0]])
    found = positions.correlations(matrix)
    assert found[0].tolist() == [1, 1, -1, 0]
    # Of 12 ordered pairs, 6 have |r| = 1 and the others 0.
    assert positions.mean_correlation(matrix) == pytest.approx(math.sqrt(6 / 12))


def test_likeness__one_for_multiples_and_rotations_zero_for_strangers() -> None:
    one, other = torch.randn(2, 64, 256, generator=_generator()).double()
    turn, _ = torch.linalg.qr(torch.randn(256, 256, generator=_generator()).double())
    assert positions.likeness(one, -3 * one) == pytest.approx(1)
    assert positions.likeness(one, one @ turn) == pytest.approx(1)  # the same noise
    # Cosine of two random symmetric matrices of 64 · 65 / 2 free entries.
    assert abs(positions.likeness(one, other)) < 5 / math.sqrt(64 * 65 / 2)
    wide, high = torch.tensor([3.0, 1.0]).diag(), torch.tensor([1.0, 3.0]).diag()
    assert positions.likeness(wide, high) == pytest.approx(-1)
