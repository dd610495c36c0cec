"""L2 multinomial logistic regression by L-BFGS, to convergence.

The objective is mean cross-entropy + penalty / (2 n) · ‖W‖², which in the sum form of other
libraries is C = 1 / penalty.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Of the released 1 % protocol, which has no intercept: as its README says (C = 400), and as its
# script has it where nothing is said.
RELEASED_PENALTIES = {"released-1%": 0.0025, "released-1%-script": 0.00025}
_MOST_RESTARTS = 20
_DAMPING = 0.1  # at least, of the mean curvature: what is far from the start is less curved


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted classifier on standardised features."""

    mean: Tensor
    std: Tensor
    weight: Tensor  # (classes, D)
    bias: Tensor | None
    iterations: int
    converged: bool

    def accuracy(self, features: Tensor, labels: Tensor, *, own_statistics: bool = False) -> float:
        """In percent. own_statistics standardises by the test set itself, as was released."""
        x = features.to(self.weight)
        mean, std = (x.mean(0), x.std(0)) if own_statistics else (self.mean, self.std)
        scores = F.linear((x - mean) / std.clamp(min=1e-8), self.weight, self.bias)
        return 100 * float((scores.argmax(1) == labels.to(scores.device)).double().mean())


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    *,
    penalty: float = 1.0,
    intercept: bool = True,
    most_iterations: int = 2000,
    tolerance: float = 1e-6,
    rescaled: bool = True,
) -> Logistic:
    """Fits on features (n, D) and labels 0, 1, … (n,), in the precision and place of the features.

    tolerance: the largest entry of the gradient at which the fit counts as converged.
    rescaled: whether the search is made along the features' principal directions, each scaled by
        how curved the objective is along it: the same end by a shorter way.
    """
    mean, std = features.mean(0), features.std(0).clamp(min=1e-8)
    x = (features - mean) / std
    labels = labels.to(x.device)
    classes = int(labels.max()) + 1
    curved = 1 / classes if rescaled else 1.0  # along a score, where all classes are as likely
    vectors, scale = torch.eye(x.shape[1]).to(x), x.new_ones(x.shape[1])
    if rescaled:
        vectors, squares = _principal(x)
        damping = max(penalty / len(x), _DAMPING * curved * float(squares.mean()))
        scale = (curved * squares + damping).rsqrt()
    z = (x @ vectors) * scale
    weight = x.new_zeros(classes, z.shape[1], requires_grad=True)  # W = weight · scale · vectorsᵀ
    bias = x.new_zeros(classes, requires_grad=intercept)
    trained = [weight, bias] if intercept else [weight]

    def closure() -> Tensor:
        weight.grad = bias.grad = None
        loss = F.cross_entropy(F.linear(z, weight, bias * curved**-0.5), labels)
        loss = loss + penalty / (2 * len(x)) * (weight * scale).square().sum()
        loss.backward()
        return loss

    def steepest() -> float:
        """The largest entry of the gradient by W and b themselves."""
        closure()
        assert weight.grad is not None
        parts = [weight.grad / scale @ vectors.T]
        if bias.grad is not None:
            parts.append(bias.grad * curved**0.5)
        return max(float(part.abs().max()) for part in parts)

    iterations, within, slope = 0, tolerance * curved**-0.5, float("inf")
    for _ in range(_MOST_RESTARTS):  # a line search that gives up is started afresh
        optimizer = torch.optim.LBFGS(
            trained,
            max_iter=most_iterations - iterations,
            max_eval=2 * most_iterations,
            tolerance_grad=within,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(closure)
        iterations += optimizer.state[weight]["n_iter"]
        slope = steepest()
        if slope <= tolerance or iterations >= most_iterations:
            break
        within /= 2
    return Logistic(
        mean,
        std,
        (weight * scale).detach() @ vectors.T,
        bias.detach() * curved**-0.5 if intercept else None,
        iterations=iterations,
        converged=slope <= tolerance,
    )


def _principal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Directions in which features (n, D) differ, (D, at most n), and the mean squares along them.

    Weights along all others would stay zero.
    """
    if len(x) > x.shape[1]:
        squares, vectors = torch.linalg.eigh(x.T @ x / len(x))
        return vectors, squares.clamp(min=0)
    _, singular, rows = torch.linalg.svd(x, full_matrices=False)
    return rows.T, singular.square() / len(x)
