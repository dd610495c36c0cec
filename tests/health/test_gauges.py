"""Every gauge against a direct computation in NumPy."""

import math

import numpy as np
import pytest
import torch

from flexpredict.health import gauges
from flexpredict.model.positions import StochasticPositions
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import create_encoder

RNG = np.random.default_rng(0)


def _features(rows: int, columns: int) -> np.ndarray:
    """Of a few large directions and a mean that is not zero."""
    basis = RNG.normal(size=(4, columns))
    return RNG.normal(size=(rows, 4)) @ basis + 0.1 * RNG.normal(size=(rows, columns)) + 0.5


def _predictor(positions: StochasticPositions) -> Predictor:
    torch.manual_seed(0)
    return Predictor(
        encoder_dim=24, output_dim=24, dim=16, depth=1, heads=2, grid=(4, 4), positions=positions
    )


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_rankme__is_e_to_the_entropy_of_singular_values(shape: tuple[int, int]) -> None:
    features = _features(*shape)
    share = np.linalg.svd(features, compute_uv=False)
    share /= share.sum()
    expected = math.exp(-(share * np.log(share)).sum())
    assert gauges.rankme(gauges.gram(torch.from_numpy(features))) == pytest.approx(
        expected, rel=1e-9
    )


def test_rankme__counts_equal_directions() -> None:
    assert gauges.rankme(gauges.gram(torch.eye(7))) == pytest.approx(7)
    assert gauges.rankme(gauges.gram(torch.ones(20, 7))) == pytest.approx(1, abs=1e-6)
    assert math.isnan(gauges.rankme(gauges.gram(torch.full((3, 3), math.inf))))


def test_spread_and_cosine() -> None:
    features = _features(20, 6)
    around = np.sqrt(((features - features.mean(0)) ** 2).mean() / (features**2).mean())
    assert float(gauges.spread(torch.from_numpy(features))) == pytest.approx(around, rel=1e-5)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = [unit[i] @ unit[j] for i in range(20) for j in range(20) if i != j]
    found = float(gauges.mean_cosine(torch.from_numpy(features)))
    assert found == pytest.approx(np.mean(cosines), rel=1e-9)


def test_encoder_distance() -> None:
    one, other = (
        create_encoder("vit_nano", image_size=32),
        create_encoder("vit_nano", image_size=32),
    )
    flat = [
        np.concatenate(
            [
                p.numpy(force=True).ravel()
                for name, p in encoder.named_parameters()
                if name != "pos_embed"
            ]
        ).astype(float)
        for encoder in (one, other)
    ]
    expected = np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0])
    assert expected > 0.1
    assert float(gauges.encoder_distance(one, other)) == pytest.approx(expected, rel=1e-5)
    assert float(gauges.encoder_distance(one, one)) == 0


def test_projection_gauges() -> None:
    predictor = _predictor(StochasticPositions(24, 16, tied=False))
    encoder = create_encoder("vit_nano", image_size=32)
    torch.nn.init.uniform_(encoder.norm.weight)
    found = gauges.projection_gauges(predictor, encoder)
    weight = predictor.predictor_embed.weight.detach().numpy()
    own = predictor.positions.noise_projection
    assert own is not None
    expected = {
        "norm_A": np.sqrt((weight**2).sum()),
        "l1_A": np.abs(weight).sum(),
        "norm_b": np.linalg.norm(predictor.predictor_embed.bias.detach().numpy()),
        "norm_mask_token": np.linalg.norm(predictor.mask_token.detach().numpy()),
        "l1_mask_token": np.abs(predictor.mask_token.detach().numpy()).sum(),
        "norm_gamma": np.linalg.norm(encoder.norm.weight.detach().numpy()),
        "norm_noise_projection": np.linalg.norm(own.weight.detach().numpy()),
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize(
    "kind", [{}, {"tied": False}, {"covariance": "fixed"}, {"norm": True}], ids=str
)
def test_noise_gauges__agree_with_drawn_noise(kind: dict[str, object]) -> None:
    """rms(A n) of many draws, within five standard errors of some 0.1 %."""
    positions = StochasticPositions(24, 16, 0.3, **kind)  # type: ignore[arg-type]
    predictor = _predictor(positions)
    features = RNG.normal(size=(50, 24)) * 3 + 1
    weight = predictor.predictor_embed.weight.detach().numpy().astype(float)
    if positions.noise_projection is not None:
        torch.nn.init.normal_(positions.noise_projection.weight)
    own = weight if positions.noise_projection is None else (
        positions.noise_projection.weight.detach().numpy()
    )  # fmt: skip
    assert positions.noise is not None
    drawn = 0.3 * RNG.normal(size=(100_000, positions.noise.width))
    noise = drawn if positions.covariance == "fixed" else drawn @ own.T
    seen = features
    if positions.norm:
        seen = (features - features.mean(1, keepdims=True)) / features.std(1, keepdims=True)
    rms_noise, rms_signal = np.sqrt((noise**2).mean()), np.sqrt(((seen @ weight.T) ** 2).mean())
    rms_position = np.sqrt((predictor.predictor_pos_embed.numpy(force=True) ** 2).mean())
    found = gauges.noise_gauges(predictor, torch.from_numpy(features).float())
    assert float(found["noise_over_signal"]) == pytest.approx(rms_noise / rms_signal, rel=5e-3)
    assert float(found["noise_over_position"]) == pytest.approx(rms_noise / rms_position, rel=5e-3)


def test_noise_gauges__there_are_none_without_noise() -> None:
    assert (
        gauges.noise_gauges(_predictor(StochasticPositions(24, 16, 0.0)), torch.ones(2, 24)) == {}
    )


def test_losses__by_block_and_row() -> None:
    errors = torch.from_numpy(RNG.uniform(size=(3, 2, 5)))
    targets = torch.from_numpy(RNG.integers(0, 8, size=(3, 2, 5)))  # rows 0 and 1 of 4×4
    sums, counts = gauges.by_block(errors)
    np.testing.assert_allclose((sums / counts).numpy(), errors.numpy().mean(axis=(0, 2)))
    sums, counts = gauges.by_row(errors, targets, (4, 4))
    for row in range(4):
        of_row = errors.numpy()[targets.numpy() // 4 == row]
        assert counts[row] == len(of_row)
        assert float(sums[row]) == pytest.approx(of_row.sum())
    assert counts[2] == counts[3] == 0
