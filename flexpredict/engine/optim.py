"""Parameter groups, and learning rate, weight decay and EMA momentum as functions of the step.

Steps are counted from 0. The released schedules raise their counter before they use it, so that
step 0 already has one step of warm-up behind it, the peak falls on the last step of the warm-up
and the final value on the last step of the run.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that changes from step to step."""

    steps: int
    warmup_steps: int
    freeze_step: int  # lr and weight decay keep the value they have after this many steps
    lr_start: float
    lr: float
    lr_final: float
    weight_decay_start: float
    weight_decay_final: float
    ema_start: float
    ema_final: float

    def learning_rate(self, step: int) -> float:
        done = min(step + 1, self.freeze_step)
        if done < self.warmup_steps:
            return self.lr_start + done / self.warmup_steps * (self.lr - self.lr_start)
        progress = (done - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.lr_final + (self.lr - self.lr_final) * _cosine(progress)

    def weight_decay(self, step: int) -> float:
        progress = min(step + 1, self.freeze_step) / self.steps
        start, final = self.weight_decay_start, self.weight_decay_final
        return final + (start - final) * _cosine(progress)

    def ema(self, step: int) -> float:
        return self.ema_start + step * (self.ema_final - self.ema_start) / self.steps


def _cosine(progress: float) -> float:
    """From 1 at progress 0 to 0 at progress 1."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    """Per module, weights with decay and biases and other vectors without."""
    groups: list[dict[str, Any]] = []
    for module in modules:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        for decay in (True, False):
            chosen = [p for name, p in named if (p.ndim > 1 and not name.endswith("bias")) is decay]
            groups.append({"params": chosen, "decay": decay})
    return groups


def set_step(groups: Iterable[dict[str, Any]], schedule: Schedule, step: int) -> None:
    """Puts the step's learning rate and weight decay into an optimiser's groups."""
    lr, weight_decay = schedule.learning_rate(step), schedule.weight_decay(step)
    for group in groups:
        group["lr"] = lr
        group["weight_decay"] = weight_decay if group["decay"] else 0.0
