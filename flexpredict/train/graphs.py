"""A loss and its gradients as one CUDA graph: launched by one call instead of a thousand.

What changes from step to step is copied into fixed places first: images, masks, and the random
numbers that the graph was seen to ask for. Small models wait for launches more than for products.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective.views import View

_WARM_UPS = 3
_MOST_SHAPES = 4  # masks of ever new lengths are not worth a graph each

Compute = Callable[[Tensor, Sequence[View]], Tensor]  # adds to gradients, gives the loss


class Recorded(Draws):
    """Remembers what is asked for; asked again, gives the same tensors, refilled in between."""

    def __init__(self, real: Draws) -> None:
        super().__init__()
        self._real = real
        self._asked: list[tuple[str, tuple[int, ...], Tensor]] = []
        self._next = 0
        self._known = False

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        return self._ask("normal", shape, like)

    def uniform(self, *shape: int, like: Tensor) -> Tensor:
        return self._ask("uniform", shape, like)

    def rewind(self) -> None:
        """All has been asked for once; it will be asked again in the same order."""
        self._known, self._next = True, 0

    def refill(self, real: Draws) -> None:
        for kind, shape, held in self._asked:
            held.copy_(getattr(real, kind)(*shape, like=held))

    def _ask(self, kind: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        if not self._known:
            self._asked.append((kind, shape, getattr(self._real, kind)(*shape, like=like)))
            return self._asked[-1][2]
        held = self._asked[self._next][2]
        self._next += 1
        return held


@dataclass(slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    images: Tensor
    masks: list[Masks]
    draws: list[Recorded]
    loss: Tensor
    gradients: list[Tensor | None]  # of each parameter, where the graph leaves it


class Graphed:
    """Computes as `compute` does, from graphs captured when shapes are first met."""

    def __init__(self, compute: Compute, parameters: Sequence[Tensor]) -> None:
        self._compute, self._parameters = compute, parameters
        self._captured: dict[tuple[object, ...], _Captured] = {}

    def __call__(self, images: Tensor, views: Sequence[View], *, add: bool) -> Tensor:
        """The loss; gradients are added to those that are there, or else take their place.

        Those that are added to have to stay where they are: zero them, do not drop them.
        """
        key = (
            add,
            images.shape,
            *(m.shape for v in views for m in (v.masks.context, v.masks.targets)),
        )
        known = self._captured.get(key)
        if known is None:
            if len(self._captured) == _MOST_SHAPES:
                if not add:
                    self._put([None] * len(self._parameters))
                return self._compute(images, views)
            known = self._captured[key] = self._capture(images, views, add=add)
            known.graph.replay()  # on what it was captured with: the numbers are drawn already
            return known.loss
        known.images.copy_(images)
        for held, recorded, view in zip(known.masks, known.draws, views, strict=True):
            held.context.copy_(view.masks.context)
            held.targets.copy_(view.masks.targets)
            recorded.refill(view.draws)
        known.graph.replay()
        if not add and self._parameters[0].grad is not known.gradients[0]:  # of another graph
            self._put(known.gradients)
        return known.loss

    def _put(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def _capture(self, images: Tensor, views: Sequence[View], *, add: bool) -> _Captured:
        before = [p.grad.clone() if add and p.grad is not None else None for p in self._parameters]
        images = images.clone()
        masks = [Masks(v.masks.context.clone(), v.masks.targets.clone()) for v in views]
        draws = [Recorded(view.draws) for view in views]
        fixed = [View(m, d) for m, d in zip(masks, draws, strict=True)]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self._compute(images, fixed)
                for recorded in draws:
                    recorded.rewind()
        torch.cuda.current_stream().wait_stream(aside)
        if not add:  # what is captured makes tensors for them, and writes there ever after
            self._put([None] * len(self._parameters))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = self._compute(images, fixed)
        if add:
            for parameter, gradient in zip(self._parameters, before, strict=True):
                if parameter.grad is not None:
                    parameter.grad.zero_() if gradient is None else parameter.grad.copy_(gradient)
        return _Captured(graph, images, masks, draws, loss, [p.grad for p in self._parameters])
