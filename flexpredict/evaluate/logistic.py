"""L2 multinomial logistic regression by L-BFGS, to convergence.

The objective is mean cross-entropy + penalty / (2 n) · ‖W‖², which in the sum form of other
libraries is C = 1 / penalty.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

RELEASED_PENALTY = 0.0025  # the released 1 % protocol: C = 400, no intercept
_MOST_RESTARTS = 20


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
) -> Logistic:
    """Fits on features (n, D) and labels 0, 1, … (n,), in the precision and place of the features.

    tolerance: the largest entry of the gradient at which the fit counts as converged.
    """
    mean, std = features.mean(0), features.std(0).clamp(min=1e-8)
    x = (features - mean) / std
    labels = labels.to(x.device)
    classes = int(labels.max()) + 1
    weight = x.new_zeros(classes, x.shape[1], requires_grad=True)
    bias = x.new_zeros(classes, requires_grad=intercept)
    trained = [weight, bias] if intercept else [weight]

    def closure() -> Tensor:
        weight.grad = bias.grad = None
        loss = F.cross_entropy(F.linear(x, weight, bias), labels)
        loss = loss + penalty / (2 * len(x)) * weight.square().sum()
        loss.backward()
        return loss

    iterations, steepest = 0, float("inf")
    for _ in range(_MOST_RESTARTS):  # a line search that gives up is started afresh
        optimizer = torch.optim.LBFGS(
            trained,
            max_iter=most_iterations - iterations,
            max_eval=2 * most_iterations,
            tolerance_grad=tolerance,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(closure)
        iterations += optimizer.state[weight]["n_iter"]
        closure()
        steepest = max(float(part.grad.abs().max()) for part in trained if part.grad is not None)
        if steepest <= tolerance or iterations >= most_iterations:
            break
    return Logistic(
        mean,
        std,
        weight.detach(),
        bias.detach() if intercept else None,
        iterations=iterations,
        converged=steepest <= tolerance,
    )
