"""Trackers that a run also reports to, if asked: TensorBoard or Weights & Biases.

metrics.jsonl stays the source of truth. Each is an extra, imported when it is asked for.
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from flexpredict.config import Settings

Track = Literal["tensorboard", "wandb"]


class Tracker(Protocol):
    def log(self, metrics: Mapping[str, Any]) -> None:
        """One line of metrics."""
        ...

    def close(self) -> None: ...


def check_track(track: str) -> Track:
    """Refuses what is unknown or not installed."""
    known = get_args(Track)
    if track not in known:
        raise ValueError(f"--track knows {' and '.join(known)}, not {track!r}")
    try:
        importlib.import_module(track)
    except ImportError:
        raise ValueError(
            f"--track {track} needs a package that cannot be imported: "
            f"pip install 'flexpredict[{track}]'"
        ) from None
    return cast(Track, track)


def start_tracker(track: Track, run: Path, first: int, settings: Settings) -> Tracker:
    """A tracker for the steps after `first`."""
    return (TensorBoard if track == "tensorboard" else Wandb)(run, first, settings)


class TensorBoard:
    """Event files in run/tensorboard."""

    def __init__(self, run: Path, first: int, _settings: Settings) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        # What an interrupted session wrote after its last checkpoint is taken back.
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=first + 1)

    def log(self, metrics: Mapping[str, Any]) -> None:
        for name, value in scalars(metrics):
            self._writer.add_scalar(name, value, metrics["step"])

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of the project `flexpredict`, under the name of the run folder."""

    def __init__(self, run: Path, _first: int, settings: Settings) -> None:
        import wandb

        identity = f"{run.resolve().name}-{settings.digest()}"
        try:
            self._run = wandb.init(
                project="flexpredict",
                name=run.resolve().name,
                id=identity,
                resume="allow",
                dir=str(run),
                config=settings.model_dump(mode="json"),
            )
        except wandb.errors.Error as error:
            sentence = str(error).partition("\n")[0].rstrip(".")
            login = "" if "wandb login" in sentence else "log in with `wandb login`, or "
            raise ValueError(
                f"--track wandb cannot start: {sentence}; {login}set WANDB_MODE=offline"
            ) from None

    def log(self, metrics: Mapping[str, Any]) -> None:
        self._run.log(dict(scalars(metrics)), step=metrics["step"])

    def close(self) -> None:
        self._run.finish()


def scalars(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers by name; those of a list by their place, as name/0."""
    for name, value in metrics.items():
        many = isinstance(value, list)
        for place, one in enumerate(value if many else [value]):
            if one is not None and name != "step":
                yield (f"{name}/{place}" if many else name), one
