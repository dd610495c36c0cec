"""Gauges while a run trains: always of the same images, masks and noise, beside the step.

Nothing that is trained or drawn depends on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexpredict import build
from flexpredict.config import Settings
from flexpredict.data.augment import augment_batch
from flexpredict.data.sources import Source
from flexpredict.engine import precision
from flexpredict.health import gauges as health
from flexpredict.model.masking import Grid
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.mae import Mae
from flexpredict.objective.views import View
from flexpredict.train.chunks import Chunks, Plan
from flexpredict.train.graphs import Recorded
from flexpredict.train.step import Step

_IMAGES = 256  # or a batch of training, if that is smaller: gauging costs about a step then
_SELDOM, _OFTEN, _TIMES = 300, 5, 15
_AT_ONCE_ON_CPU = 64  # they stay in its cache

_RANK = "rankme_"

Values = dict[str, Tensor]


def period(settings: Settings, steps: int) -> int:
    """Steps from one gauging to the next: so many that they cost little, in a short run fewer."""
    return settings.gauge_every or max(_OFTEN, min(_SELDOM, steps // _TIMES))


class Gauges:
    """Measures an objective on the first images of the first epoch, as they are first seen."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        chunks: Chunks,
        objective: IJepa | Mae,
        step: Step,
    ) -> None:
        self._objective = objective
        self._encoders = dict(objective.encoders)
        if self._encoders["context"] is self._encoders["target"]:  # MAE has one
            del self._encoders["context"]
        self._autocast = partial(precision.autocast, step.device, step.dtype)
        images = first_images(settings, source).to(step.device)
        self._parts: list[tuple[Tensor, View]] = []
        self._draws: list[Recorded] = []
        at_once = _AT_ONCE_ON_CPU if step.device.type == "cpu" else len(images)
        for start in range(0, len(images), at_once):
            some = images[start : start + at_once]
            for view in chunks.views(chunks.plans(0, start, len(some)), step.device):
                self._draws.append(Recorded(view.draws))
                fixed = View(view.masks, self._draws[-1])
                self._parts.append((some[: len(view.masks)], fixed))
                some = some[len(view.masks) :]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._all = torch.empty(0)  # what was found, one after the other
        self._shapes: dict[str, torch.Size] = {}  # of each of it
        self._beside = ThreadPoolExecutor(max_workers=1)
        self._graphed = step.graph

    def __call__(self) -> dict[str, Any]:
        """Gauges by name: numbers, or lists of them."""
        return self.begin().result()

    def begin(self) -> Future[dict[str, Any]]:
        """Sets the device to work, and gives what is to come of it.

        Beside a captured step, a thread computes what is left for the CPU: otherwise the device
        would stand still meanwhile, for longer than it takes to gauge.
        """
        self._measure()
        if self._graph is None:
            found: Future[dict[str, Any]] = Future()
            found.set_result(self._named(self._all.cpu()))
            return found
        values, copied = self._all.to("cpu", non_blocking=True), torch.cuda.Event()
        copied.record()

        def named() -> dict[str, Any]:
            copied.synchronize()
            return self._named(values)

        return self._beside.submit(named)

    def _measure(self) -> None:
        """Where the step is a CUDA graph, so is this; the weights lie where they lay."""
        if self._graph is not None:
            self._graph.replay()
        elif not self._graphed or not self._shapes:  # the first time makes kernels ready
            self._compute()
        else:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._compute()
            self._graph.replay()

    def _named(self, values: Tensor) -> dict[str, Any]:
        parts = values.split([shape.numel() for shape in self._shapes.values()])
        found = {}
        for part, (name, shape) in zip(parts, self._shapes.items(), strict=True):
            value = part.view(shape)
            found[name] = health.rankme(value) if name.startswith(_RANK) else value.tolist()
        return found

    @torch.no_grad()
    def _compute(self) -> None:
        """All that is computed on the device; of ranks the products that they are made from."""
        objective = self._objective.eval()
        try:
            # Shapes of their own are not worth compiling.
            with torch.compiler.set_stance("force_eager"), self._autocast():
                features = {
                    name: torch.cat([encoder(i).float().mean(dim=1) for i, _ in self._parts])
                    for name, encoder in self._encoders.items()
                }
                images, view = self._parts[0]
                context = objective.encoder(images, view.masks.context)
                errors = [objective.errors(images, view) for images, view in self._parts]
        finally:
            objective.train()
        for draws in self._draws:
            draws.rewind()
        values: Values = {}
        for name, part in features.items():
            values[f"{_RANK}{name}"] = health.gram(part)
            values[f"spread_{name}"] = health.spread(part)
            values[f"cosine_{name}"] = health.mean_cosine(part)
        if "context" in self._encoders:
            values["encoder_distance"] = health.encoder_distance(
                self._encoders["context"], self._encoders["target"]
            )
        values |= health.noise_gauges(objective.predictor, context.float())
        values |= self._losses(errors)
        self._shapes = {name: value.shape for name, value in values.items()}
        self._all = torch.cat([value.double().flatten() for value in values.values()])

    def _losses(self, errors: Sequence[Tensor]) -> Values:
        grid = self._objective.encoder.grid
        places = [view.masks.targets for _, view in self._parts]
        blocks = [health.by_block(part) for part in errors]
        rows = [health.by_row(part, at, grid) for part, at in zip(errors, places, strict=True)]
        block_sums, block_counts = (torch.stack(part).sum(0) for part in zip(*blocks, strict=True))
        row_sums, row_counts = (torch.stack(part).sum(0) for part in zip(*rows, strict=True))
        return {
            "fixed_loss": block_sums.sum() / block_counts.sum(),
            "loss_by_block": block_sums / block_counts,
            "loss_by_row": row_sums / row_counts,
        }


def first_images(settings: Settings, source: Source) -> Tensor:
    """What the run begins with, whoever loads it and wherever it is held, (images, c, H, W)."""
    count = min(_IMAGES, settings.batch_size)
    batch = build.build_batches(settings.model_copy(update={"batch_size": count}), source)[0]
    if batch.failure is not None:
        raise ValueError(batch.failure)
    return augment_batch(batch.images.contiguous(), batch.draws, settings.augment)


class Coverage:
    """How often each patch has been context and target so far, in the images of this process."""

    _NAMES = ("context", "targets")

    def __init__(self, grid: Grid, state: Mapping[str, Any] | None = None) -> None:
        patches = grid[0] * grid[1]
        state = state or {"images": 0, "context": [0] * patches, "targets": [0] * patches}
        self._grid = grid
        self._images = int(state["images"])
        self._counts = np.array([state[name] for name in self._NAMES])  # (2, N)

    def add(self, plans: Iterable[Plan]) -> None:
        for plan in plans:
            self._images += len(plan.context)
            self._counts += plan.counts.numpy()

    def gauges(self) -> dict[str, list[float]]:
        """Times per patch and image for each row of the grid; blocks may overlap."""
        return {
            f"{name}_by_row": np.round(
                counts.reshape(self._grid).mean(1) / self._images, 6
            ).tolist()
            for name, counts in zip(self._NAMES, self._counts, strict=True)
        }

    def state(self) -> dict[str, Any]:
        counts = zip(self._NAMES, self._counts.tolist(), strict=True)
        return {"images": self._images, **dict(counts)}
