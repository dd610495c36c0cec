"""Going on with a run: what may differ from before, and what has to be the same."""

from pathlib import Path
from typing import Any

from flexpredict.config import WITHOUT_EFFECT, Settings, read_settings, settings_from
from flexpredict.engine import checkpoint
from flexpredict.run_folder import CONFIG, METRICS, read_metrics
from flexpredict.train.step import Step

_EARLIER = "metrics.earlier.jsonl"  # of a run that had to begin again
_ROUNDING = {"accumulate", "grad_checkpointing"}  # what may help where memory ran out
# A run may go on with other values of these; everything else makes it another run.
_FREE = WITHOUT_EFFECT | {"epochs", "steps"} | _ROUNDING


def check_free(run: Path, *, resume: bool) -> None:
    """A folder that is there holds nothing, or a run to go on with."""
    if (run / CONFIG).exists():
        if not resume:
            raise ValueError(
                f"{run} already holds a run: go on with it by --resume, or choose another --out"
            )
    elif run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ValueError(f"{run} is not empty and holds no run: choose another --out")


def changes(settings: Settings, run: Path) -> list[str]:
    """What is another than when the run was started, in words; refused where it may not be."""
    if not (run / CONFIG).exists():
        return [f"{run} holds no run yet: a new one begins"]
    begun, notes = read_settings(run / CONFIG), []
    if other := settings.other_than(begun, _FREE):
        raise ValueError(
            f"{run} was started with {other}: resume it with the same settings, or choose "
            f"another --out"
        )
    if (was := _length(begun)) != _length(settings):
        notes.append(
            f"{run} was to have {was}, and now {_length(settings)}: learning rate and weight "
            f"decay jump to where they are in a run of that length"
        )
    if other := settings.other_than(begun, _FREE - _ROUNDING):
        notes.append(f"{run} was started with {other}: sums are rounded otherwise from here on")
    if begun.data != settings.data:
        notes.append(f"{run} was started on {begun.data}, and goes on with {settings.data}")
    return notes


def restore(
    run: Path, settings: Settings, images: int, steps: int, compute: Step
) -> tuple[dict[str, Any] | None, list[str]]:
    """Brings back the newest state that can be read, if there is any; and what to say of it."""
    state = checkpoint.restore(run, compute.objective, compute.optimizer)
    if state is None:
        return None, []
    notes = [
        f"a checkpoint cannot be read, and an older one is used; {why}"
        for why in state["unreadable"]
    ]
    if state.get("imported"):
        raise ValueError(
            f"{run} was imported and has no run to resume: start one from it with --init {run} and "
            f"another --out"
        )
    if saved := state.get("settings"):
        begun = settings_from(saved, origin=f"the newest checkpoint of {run}")
        if other := settings.other_than(begun, _FREE):
            raise ValueError(
                f"{run} was trained with {other}: put its {CONFIG} back as it was, or choose "
                f"another --out"
            )
    if state["images"] != images:
        raise ValueError(
            f"{run} was started on {state['images']} images, not {images}: put back or take away "
            f"what has changed, or start from its weights with --init {run} and another --out"
        )
    if state["step"] > steps:
        raise ValueError(
            f"{run} is at step {state['step']}, beyond the {steps} that were asked for: ask for "
            f"more, or choose another --out"
        )
    if state["scaler"] and compute.scaler.is_enabled():
        compute.scaler.load_state_dict(state["scaler"])
    return state, notes


def begin_again(run: Path) -> list[str]:
    """Puts aside what was logged by a run that was never saved, and says so."""
    if not (logged := read_metrics(run)):
        return []
    (run / METRICS).replace(run / _EARLIER)
    return [
        f"{run} had come to step {logged[-1]['step']}, but no checkpoint was saved: it begins "
        f"again at the first, and what it had logged is in {_EARLIER}"
    ]


def _length(settings: Settings) -> str:
    return f"epochs={settings.epochs:g}" if settings.epochs else f"steps={settings.steps}"
