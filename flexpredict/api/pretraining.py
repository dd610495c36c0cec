"""Pretraining, what comes of it, and how a run is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexpredict import build
from flexpredict.config import Settings, read_recipe, read_settings, settings_from
from flexpredict.data.doubts import doubts
from flexpredict.data.inspect import inspect
from flexpredict.data.sources import Source, open_source
from flexpredict.data.sources.folder import parts_of
from flexpredict.data.sources.subset import SubsetSource
from flexpredict.engine.distributed import pick_device, processes, raised_by_sigterm
from flexpredict.engine.encoders import Which, load_encoder
from flexpredict.evaluate.online import OnlineProbe
from flexpredict.health.diagnosis import Diagnosis, diagnose, steps_of
from flexpredict.health.reference import Reading, readings, reference_of
from flexpredict.model.vit import Encoder
from flexpredict.progress import Tally, say
from flexpredict.run_folder import CONFIG, read_metrics
from flexpredict.train import loop
from flexpredict.train.loop import Result
from flexpredict.train.track import check_track

if TYPE_CHECKING:
    from flexpredict.demonstration import Demo

_MEASURED = 2000  # images whose channels are measured, at most

Data = str | Path | Source | NDArray[np.uint8]


def pretrain(
    data: Data | None = None,
    out: str | Path = "run",
    *,
    recipe: str | None = None,
    resume: bool = False,
    device: str | None = None,
    track: str | None = None,
    **settings: Any,
) -> Result:
    """Pretrains an encoder on images and writes a run folder.

    data: a folder of images of any depth, a list or CSV of paths, tar shards, packed files,
        `scenes` for the embedded ones, `tiny-imagenet` and such in the folder that
        FLEXPREDICT_DATA names, or a uint8 array.
    recipe: the name of a recipe that comes with the package, `name@variant`, or a YAML file.
    resume: goes on with the run in `out`, by its settings but for those that are given; starts it
        where there is none.
    track: `tensorboard` or `wandb`, where metrics go besides metrics.jsonl.
    settings: any names of `fp.Settings`, over those of the recipe. With `init` and no recipe the
        model is as that of the run named.
    """
    if data is not None:  # what is given wins over what a recipe names
        settings["data"] = str(data) if isinstance(data, str | Path) else None
    if resume and (Path(out) / CONFIG).is_file():
        chosen = _go_on(Path(out) / CONFIG, recipe, settings)
    else:
        first = settings.get("init") if recipe is None else None  # a recipe says what the model is
        under = build.architecture_of(Path(first)) if first else None
        chosen = settings_from(settings, recipe=recipe, under=under)
    images = chosen.data if data is None else data
    if images is None:
        raise ValueError("no images were named: give a folder, a list, or `scenes` for our own")
    tracker = None if track is None else check_track(track)
    early = loop.Interrupted("stopped while there was nothing to save; add --resume to go on")
    with processes(device) as ranks, raised_by_sigterm(early):
        size, progress = max(build.image_size(chosen)), Tally("scenes") if ranks.is_main else None
        source = open_source(images, image_size=size, progress=progress)  # scenes are square
        chosen = _with_statistics(chosen, source)
        if ranks.is_main:
            for sentence in doubts(source, chosen.in_channels, build.image_size(chosen)):
                say(f"warning: {sentence}")
        probe = ranks.by_main(lambda: _online_probe(chosen, progress))
        return loop.train(
            chosen, source, Path(out), ranks, resume=resume, probe=probe, track=tracker
        )


def _online_probe(settings: Settings, progress: Tally | None) -> OnlineProbe | None:
    """Who looks at the features on the way, where labelled images were named."""
    if settings.probe_data is None:
        return None
    parts = parts_of(Path(settings.probe_data).expanduser())
    size = build.image_size(settings)
    where = parts[0] if parts else settings.probe_data
    return OnlineProbe(
        open_source(where, image_size=max(size), progress=progress), size, settings.in_channels
    )


def _go_on(config: Path, recipe: str | None, settings: dict[str, Any]) -> Settings:
    """The settings of a run with those over them that are given again."""
    before = read_settings(config).model_dump()
    again = settings_from(read_recipe(recipe) if recipe else {}, under=before)
    return settings_from(settings, under=again.model_dump())


def _with_statistics(settings: Settings, source: Source) -> Settings:
    """Mean and standard deviation of each channel, as far as nobody said and nobody can know them.

    A run that goes on has them in its settings. For three channels they are ImageNet's.
    """
    if settings.in_channels == 3 or None not in (settings.mean, settings.std):
        return settings
    rows = np.unique(np.linspace(0, len(source) - 1, _MEASURED).astype(np.int64))
    found = inspect(SubsetSource(source, rows), channels=settings.in_channels, workers=1)
    if found.mean is None or found.std is None:
        return settings  # nothing can be decoded: training will say so
    std = tuple(max(value, 1 / 255) for value in found.std)  # of one grey level at least
    measured = {"mean": tuple(found.mean), "std": std}
    missing = {name: value for name, value in measured.items() if getattr(settings, name) is None}
    return settings.model_copy(update=missing)


def load(path: str | Path, encoder: Which = "target", device: str | None = None) -> Encoder:
    """The encoder of a run: the target encoder, or `encoder="context"` for the other."""
    from flexpredict.interop.baselines import load_baseline

    found = load_baseline(folder_of(path), encoder) or load_encoder(Path(path), encoder)
    return found.to(pick_device(device or "cpu"))


class Checkup(NamedTuple):
    diagnosis: Diagnosis
    gauges: list[Reading]
    healthy: str | None  # which healthy runs the readings stand beside


def doctor(run: str | Path) -> Checkup:
    """Whether a run is well, finished or not, and what its gauges say beside healthy runs."""
    run = Path(run)
    if not (run / CONFIG).is_file():
        raise ValueError(f"{run} is no run: expected a folder with {CONFIG}")
    settings, lines = read_settings(run / CONFIG), read_metrics(run)
    if not lines:
        raise ValueError(f"{run} has logged nothing yet: there is nothing to judge it by")
    beside = reference_of(settings, steps_of(settings, lines[-1]))
    return Checkup(diagnose(settings, lines), readings(settings, lines), beside)


def demo(
    out: str | Path = "demo-run", *, minutes: float = 5, seed: int = 0, device: str | None = None
) -> "Demo":
    """Pretrains with and without StoP on the embedded scenes, probes both and writes a report."""
    from flexpredict.demonstration import (
        run_demo,  # draws figures: nobody else has to wait for matplotlib
    )

    return run_demo(Path(out), minutes=minutes, seed=seed, device=device)


def folder_of(run: str | Path) -> Path:
    """The folder of a run that is named by it or by a file in it."""
    return Path(run).parent if Path(run).is_file() else Path(run)
