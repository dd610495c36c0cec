"""One training step: forward, backward, optimiser, moving average. Nothing waits for the device."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flexpredict.config import Settings
from flexpredict.engine import optim, precision
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.mae import Mae
from flexpredict.objective.views import View
from flexpredict.train.graphs import Graphed
from flexpredict.train.narrow import Narrow

_SMALL = 60_000_000  # weights: vit_small, its moving average and its predictor


class Ways(NamedTuple):
    """How steps are computed."""

    dtype: torch.dtype
    compiled: bool
    graph: bool


def ways_of(settings: Settings, objective: nn.Module, device: torch.device, world: int = 1) -> Ways:
    """As asked where it can be, else what pays: graphs where a step is short."""
    dtype = precision.compute_dtype(settings.precision, device)
    gpu = device.type == "cuda"
    fixed = settings.masking != "paper"  # ever new lengths are not worth compiling or capturing
    compiled = gpu if settings.compile is None else settings.compile
    graph = settings.graph
    if graph is None:
        graph = sum(p.numel() for p in objective.parameters()) < _SMALL
    scaled = dtype == torch.float16  # by a number that changes from step to step
    return Ways(dtype, compiled and fixed, graph and gpu and fixed and world == 1 and not scaled)


def unused_ways(settings: Settings, ways: Ways) -> list[str]:
    """What was asked for and is not done."""
    found = []
    if settings.compile and not ways.compiled:
        found.append("compile=true is not used: masking=paper has ever new lengths")
    if settings.graph and not ways.graph:
        found.append(
            "graph=true is not used: it needs one process on a GPU, precision other than float16, "
            "and masks of one length (masking=even or random)"
        )
    return found


def step_of(
    settings: Settings, objective: IJepa | Mae, device: torch.device, world: int = 1
) -> "Step":
    """The step that training computes; moves the objective to its device."""
    objective.to(device).train()
    if settings.precision == "float8":
        precision.to_float8(objective.encoders.values(), device)
    groups = optim.parameter_groups([objective.encoder, objective.predictor])
    optimizer = torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, fused=device.type in ("cpu", "cuda")
    )
    dtype, compiled, graph = ways_of(settings, objective, device, world)
    if compiled:
        precision.compile_parts(objective)
    return Step(
        objective,
        optimizer,
        device=device,
        dtype=dtype,
        clip_grad=settings.clip_grad,
        world=world,
        graph=graph,
    )


class Step:
    """Computes steps of an objective. `parts` are micro-batches, one after the other.

    graph: forward and backward of each micro-batch are one CUDA graph.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        dtype: torch.dtype,
        clip_grad: float = 0.0,
        world: int = 1,
        graph: bool = False,
    ) -> None:
        self.objective, self.optimizer = objective, optimizer
        self.device, self.dtype, self.clip_grad, self.graph = device, dtype, clip_grad, graph
        self.scaler = precision.grad_scaler(device, dtype)
        self._model = objective if world == 1 else DistributedDataParallel(objective)
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._parts = 0  # of the steps so far
        self._graphed = Graphed(self._backward, self._trained) if graph else None
        self._narrow = Narrow(objective, dtype) if graph and dtype != torch.float32 else None

    def __call__(
        self,
        images: Tensor,
        parts: Sequence[Sequence[View]],
        momentum: float,
        *,
        measure: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of a batch and, if asked, the norms of its gradient."""
        if self._graphed is not None and self._parts not in (0, len(parts)):
            raise ValueError(f"captured for {self._parts} micro-batches a step, not {len(parts)}")
        self._parts, micro = len(parts), len(images) // len(parts)
        loss = torch.zeros((), device=self.device)
        for place, views in enumerate(parts):
            some = images[place * micro : (place + 1) * micro]
            loss += self._compute(some, views, last=place == len(parts) - 1)
        return loss, self.update(momentum, measure=measure)

    def update(self, momentum: float, *, measure: bool = False) -> dict[str, Tensor]:
        """Moves the weights by their gradients, and the target after them."""
        norms: dict[str, Tensor] = {}
        if self.clip_grad or measure:
            self.scaler.unscale_(self.optimizer)
            for name in ("encoder", "predictor"):
                part: nn.Module = getattr(self.objective, name)
                gradients = [p.grad for p in part.parameters() if p.grad is not None]
                norms[f"gradient_norm_{name}"] = nn.utils.get_total_norm(gradients)
            total = norms["gradient_norm"] = torch.stack(list(norms.values())).norm()
            if self.clip_grad:
                nn.utils.clip_grads_with_norm_(self._trained, self.clip_grad, total)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self._graphed is None or self._parts > 1:  # else the next ones take their place
            self.optimizer.zero_grad(set_to_none=self._graphed is None)
        self.objective.update_target(momentum)  # type: ignore[operator]
        return norms

    def _compute(self, images: Tensor, views: Sequence[View], *, last: bool) -> Tensor:
        if self._graphed is not None:
            return self._graphed(images, views, add=self._parts > 1)
        waiting = isinstance(self._model, DistributedDataParallel) and not last
        with self._model.no_sync() if waiting else nullcontext():  # type: ignore[operator]
            return self._backward(images, views)

    def _backward(self, images: Tensor, views: Sequence[View]) -> Tensor:
        narrow = self._narrow.used() if self._narrow and self._parts == 1 else nullcontext()
        with narrow:
            with precision.autocast(self.device, self.dtype):
                loss: Tensor = self._model(images, views)
            loss = loss / self._parts
            self.scaler.scale(loss).backward()
        return loss.detach()
