import math

import pytest
import torch

from flexpredict.evaluate.ridge import PENALTIES, Fit, Sums, choose_fit, fits, ridge_probe


def test_ridge__equals_the_normal_equations() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(60, 7).double(), torch.randint(3, (60,))
    standard = (x - x.mean(0)) / x.std(0)
    y = torch.nn.functional.one_hot(labels).double()
    parts = [Sums.of(x, lambda rows: y[rows], rows) for rows in torch.arange(60).split(23)]
    for penalty, fit in zip(
        PENALTIES, fits(parts[0] + parts[1] + parts[2], PENALTIES), strict=True
    ):
        ridge = penalty * 60 * torch.eye(7).double()
        direct = torch.linalg.solve(standard.T @ standard + ridge, standard.T @ (y - y.mean(0)))
        torch.testing.assert_close(fit.weight, direct)
        torch.testing.assert_close(fit(x), standard @ direct + y.mean(0))


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


def test_ridge__penalty_is_the_best_on_held_out_rows_alone() -> None:
    """The fit is then made of all rows."""
    torch.manual_seed(0)
    x, y = torch.randn(50, 40).double(), torch.randn(50, 2).double()
    held: list[list[int]] = []

    def score(fit: Fit, rows: torch.Tensor) -> float:
        held.append(rows.tolist())
        return -float((fit(x[rows]) - y[rows]).square().mean())

    fit, penalty = choose_fit(x, lambda rows: y[rows], score)
    assert len(held) == len(PENALTIES)
    assert len(held[0]) == 10
    assert all(rows == held[0] for rows in held)
    kept = [row for row in range(50) if row not in held[0]]
    sums = Sums.of(x, lambda rows: y[rows], torch.tensor(kept))
    errors = [(one(x[held[0]]) - y[held[0]]).square().mean() for one in fits(sums, PENALTIES)]
    assert penalty == PENALTIES[int(torch.stack(errors).argmin())]
    (whole,) = fits(Sums.of(x, lambda rows: y[rows], torch.arange(50)), (penalty,))
    torch.testing.assert_close(fit.weight, whole.weight)
    with pytest.raises(ValueError, match="2 labelled images are too few"):
        choose_fit(x[:2], lambda rows: y[rows], score)
