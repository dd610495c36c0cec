import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from flexpredict.evaluate.logistic import fit_logistic


def test_logistic__agrees_with_scikit_learn() -> None:
    """Handwritten digits: the same test accuracy to 0.1 points, on its solver's own terms."""
    images, digits = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(images), torch.from_numpy(digits)
    images = images + 1e-3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    train, test = slice(0, 1000), slice(1000, None)
    mean, std = images[train].mean(0), images[train].std(0)
    standard = ((images - mean) / std).numpy()
    for penalty in (1.0, 30.0):
        fit = fit_logistic(images[train], labels[train], penalty=penalty)
        ours = fit.accuracy(images[test], labels[test])
        theirs = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000)
        theirs.fit(standard[train], digits[train])
        assert abs(ours - 100 * theirs.score(standard[test], digits[test])) < 0.1
        torch.testing.assert_close(fit.weight, torch.from_numpy(theirs.coef_), rtol=1e-2, atol=1e-3)


def _blobs(count: int, classes: int, dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(classes, (count,), generator=generator)
    noise = torch.randn(count, dim, generator=generator)
    return (centres[labels] + 1.5 * noise).double(), labels


@pytest.mark.parametrize("penalty", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("intercept", [True, False])
def test_logistic__equals_newtons_method(penalty: float, intercept: bool) -> None:
    """A second solver on the same objective: the same probabilities to 1e-5."""
    x, labels = _blobs(150, 3, 4, 0)
    fit = fit_logistic(x, labels, penalty=penalty, intercept=intercept, tolerance=1e-7)
    assert fit.converged
    standard = (x - x.mean(0)) / x.std(0)
    design = torch.cat([standard, torch.ones(150, 1).double()], 1) if intercept else standard
    width = design.shape[1]
    decayed = torch.ones(3, width, dtype=torch.float64)
    decayed[:, 4:] = 0  # the intercept costs nothing

    def loss(flat: torch.Tensor) -> torch.Tensor:
        weight = flat.view(3, width)
        cost = F.cross_entropy(design @ weight.T, labels)
        return cost + penalty / 300 * (decayed * weight).square().sum()

    flat = torch.zeros(3 * width, dtype=torch.float64)
    for _ in range(50):
        gradient = torch.func.grad(loss)(flat)
        hessian = torch.func.hessian(loss)(flat) + 1e-10 * torch.eye(len(flat)).double()
        flat = flat - torch.linalg.solve(hessian, gradient)
    newton = (design @ flat.view(3, width).T).softmax(1)
    ours = F.linear(standard, fit.weight, fit.bias).softmax(1)
    torch.testing.assert_close(ours, newton, rtol=0, atol=1e-5)


def test_logistic__reaches_known_separability_and_stays_at_chance() -> None:
    torch.manual_seed(0)
    labels = torch.randint(2, (2, 8000))
    features = torch.randn(2, 8000, 10)
    features[..., 0] += 2 * labels
    best = 100 * 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    room = 5 * math.sqrt(best * (100 - best) / 8000)
    fit = fit_logistic(features[0], labels[0])
    assert fit.accuracy(features[1], labels[1]) == pytest.approx(best, abs=room)
    shuffled = labels[:, torch.randperm(8000)]
    chance = fit_logistic(features[0], shuffled[0]).accuracy(features[1], shuffled[1])
    assert abs(chance - 50) < 5 * math.sqrt(2500 / 8000)


def test_logistic__own_statistics_undo_a_shift_of_the_test_set() -> None:
    x, labels = _blobs(2000, 3, 6, 1)
    fit = fit_logistic(x, labels)
    plain = fit.accuracy(x, labels)
    assert fit.accuracy(3 * x + 5, labels, own_statistics=True) == pytest.approx(plain, abs=0.5)
    assert fit.accuracy(3 * x + 5, labels) < plain - 5


def test_logistic__says_when_it_did_not_converge() -> None:
    x, labels = _blobs(500, 3, 6, 2)
    fit = fit_logistic(x, labels, penalty=1e-6, most_iterations=3, tolerance=1e-10)
    assert not fit.converged
    assert fit.iterations == 3


@pytest.mark.parametrize("images", [30, 200], ids=["fewer images than features", "more"])
@pytest.mark.parametrize("intercept", [True, False])
def test_rescaled__is_the_same_fit_by_a_shorter_way(images: int, intercept: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    widths = torch.logspace(0, -3, 40, dtype=torch.float64)  # most directions are hardly used
    mixed = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64)).Q
    x = torch.randn(images, 40, generator=generator, dtype=torch.float64) * widths @ mixed
    labels = torch.arange(images) % 5
    fits = [
        fit_logistic(x, labels, intercept=intercept, tolerance=1e-7, rescaled=rescaled)
        for rescaled in (True, False)
    ]
    assert all(fit.converged for fit in fits)
    assert 2 * fits[0].iterations < fits[1].iterations
    torch.testing.assert_close(fits[0].weight, fits[1].weight, rtol=1e-3, atol=1e-4)
    if intercept:
        torch.testing.assert_close(fits[0].bias, fits[1].bias, rtol=1e-3, atol=1e-4)
