import math

import pytest
import torch

from flexpredict.evaluate.ridge import PENALTIES, _fit, _Sums, ridge_probe


def test_ridge__equals_the_normal_equations() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(60, 7).double(), torch.randint(3, (60,))
    standard = (x - x.mean(0)) / x.std(0)
    y = torch.nn.functional.one_hot(labels).double()
    for penalty, fit in zip(
        PENALTIES, _fit(_Sums.of(x, labels, torch.arange(60), 3), PENALTIES), strict=True
    ):
        ridge = penalty * 60 * torch.eye(7).double()
        direct = torch.linalg.solve(standard.T @ standard + ridge, standard.T @ (y - y.mean(0)))
        torch.testing.assert_close(fit.weight, direct)


def test_ridge__reaches_known_separability() -> None:
    """Two Gaussians at distance 2: the best classifier is right with probability Φ(1)."""
    torch.manual_seed(0)
    count = 20_000
    labels = torch.randint(2, (2, count))
    features = torch.randn(2, count, 30)
    features[..., 0] += 2 * labels
    probe = ridge_probe(features[0], labels[0], features[1], labels[1])
    best = 100 * 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    assert probe.accuracy == pytest.approx(best, abs=5 * math.sqrt(best * (100 - best) / count))


def test_ridge__stays_at_chance_on_random_labels() -> None:
    torch.manual_seed(0)
    labels = torch.randint(4, (2, 4000))
    features = torch.randn(2, 4000, 200)
    probe = ridge_probe(features[0], labels[0], features[1], labels[1])
    assert abs(probe.accuracy - 25) < 5 * math.sqrt(25 * 75 / 4000)
