"""Run folders as the report sees them. Nothing of a run is changed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from flexpredict.build import build_objective, image_size
from flexpredict.config import WITHOUT_EFFECT, Settings, read_settings
from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import WEIGHTS
from flexpredict.health.diagnosis import steps_of
from flexpredict.model.masking import Grid
from flexpredict.model.predictor import Predictor
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.mae import Mae
from flexpredict.run_folder import CONFIG, METRICS, read_evaluations, read_metrics


class NotDrawn(ValueError):
    """A figure cannot be drawn from these runs; the message says why."""


@dataclass(frozen=True)
class Run:
    path: Path
    name: str  # another for every run that is looked at together
    settings: Settings
    device: str = "cpu"

    @property
    def noise_std(self) -> float:
        """Of the noise that was really added."""
        return self.settings.noise_std if self.settings.stochastic else 0.0

    @property
    def finished(self) -> bool:
        return (self.path / WEIGHTS).is_file()

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path)

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        return read_evaluations(self.path)

    @cached_property
    def steps(self) -> int | None:
        """How many were asked for; None where nobody can know yet."""
        return steps_of(self.settings, self.metrics[-1])

    @cached_property
    def checkpoint(self) -> Path:
        newest = checkpoint.newest(self.path)
        if newest is None:
            raise NotDrawn(
                f"{self.path} has no checkpoint: they are made every "
                f"{self.settings.checkpoint_every} steps (checkpoint_every) and at the end"
            )
        return newest

    @property
    def progress(self) -> float:
        """How much of the run is in its newest checkpoint, from 0 to 1."""
        steps = self.steps if self.metrics else None
        return int(self.checkpoint.name.rpartition("-")[2]) / steps if steps else 1.0

    @property
    def grid(self) -> Grid:
        height, width = image_size(self.settings)
        return height // self.settings.patch_size, width // self.settings.patch_size

    @property
    def objective(self) -> IJepa | Mae:
        """Encoders and predictor as of the newest checkpoint, read again unless asked twice."""
        return _load(self, self.checkpoint)

    @cached_property
    def predictor(self) -> Predictor:
        return self.objective.predictor

    @cached_property
    def norm_gamma(self) -> float:
        """Of the scale of the context encoder's last norm."""
        return float(self.objective.encoder.norm.weight.norm())

    @cached_property
    def untrained(self) -> Predictor:
        """The predictor as drawn from the seed: not with the weights that `init` may have given."""
        return build_objective(self.settings).predictor.requires_grad_(False)


@lru_cache(maxsize=1)  # encoders of a whole sweep may not fit into memory
def _load(run: Run, folder: Path) -> IJepa | Mae:
    objective = build_objective(run.settings)
    try:
        objective.load_state_dict(checkpoint.read_weights(folder / checkpoint.MODEL))
    except RuntimeError:
        raise ValueError(
            f"{folder} does not hold the weights that {run.path / CONFIG} describes: was that "
            f"file edited?"
        ) from None
    objective.predictor.positions.set_progress(run.progress)  # noise that ends has its size by then
    return objective.eval().requires_grad_(False).to(run.device)


def read_run(path: Path, name: str | None = None, device: str = "cpu") -> Run:
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} is no run: expected a folder with {CONFIG}")
    return Run(path, name or path.resolve().name, read_settings(path / CONFIG), device)


def read_runs(paths: Sequence[Path], device: str = "cpu") -> list[Run]:
    """Several runs: each under its folder's name, or its path where folders are called the same."""
    if not paths:
        raise ValueError("no run was named: give at least one run folder")
    names = [path.resolve().name for path in paths]
    count = Counter(names)
    names = [
        str(path) if count[name] > 1 else name for path, name in zip(paths, names, strict=True)
    ]
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{name} is named {times} times: name each run once")
    runs = [read_run(path, name, device) for path, name in zip(paths, names, strict=True)]
    for run in runs:
        if not run.metrics:
            raise ValueError(f"{run.path} has no lines in {METRICS}: the run has not logged yet")
        _ = run.evaluations  # damaged ones are found before anything is drawn
    return runs


def differing(runs: Sequence[Run]) -> list[str]:
    """The settings that are not the same in all runs, those that change results first."""
    dumps = [run.settings.model_dump() for run in runs]
    names = [name for name in dumps[0] if any(dump[name] != dumps[0][name] for dump in dumps)]
    return sorted(names, key=lambda name: name in WITHOUT_EFFECT)
