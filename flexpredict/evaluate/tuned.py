"""Evaluation by fine-tuning: a preset on a task, with a label budget and seeds."""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from flexpredict.config import first_sentence
from flexpredict.data.sources.identity import identity
from flexpredict.engine.encoders import encoder_digest
from flexpredict.engine.precision import compute_dtype
from flexpredict.evaluate.finetune import PRESETS, FinetuneSettings, finetune
from flexpredict.evaluate.results import Evaluation, options, spread
from flexpredict.evaluate.subject import Draws, Subject
from flexpredict.evaluate.tasks import Labelled
from flexpredict.files import alone_in
from flexpredict.notice import Notice
from flexpredict.version import VERSION


def evaluate_finetune(
    subject: Subject,
    task: Labelled,
    *,
    preset: str = "small",
    settings: Mapping[str, Any] | None = None,
    labels: str | float | None = None,
    draws: int = 1,
    seed: int = 0,
    unfinished: Path | None = None,
    finished: Callable[[Evaluation], object] | None = None,
) -> Evaluation:
    """Test accuracy of the last epoch; each draw is another label budget and another seed.

    unfinished: the folder of what is under way, from which the same call goes on. finished: gets
    the result, before what was under way is removed.
    """
    if subject.image_size is not None:
        raise ValueError("image_size: an encoder is fine-tuned at its own size, so leave it out")
    chosen = _settings(preset, settings or {})
    drawn = Draws.of(task, labels, seed, draws, seeded=True)
    name = _name(subject, task, chosen, drawn)
    with _under_way(unfinished / name if unfinished else None) as folder:
        last, best = [], []
        for draw, rows in zip(drawn.seeds, drawn.rows, strict=True):
            tuned = finetune(
                subject.encoder,
                task.train,
                task.test,
                replace(chosen, seed=draw),
                device=subject.device,
                train_rows=rows,
                kept=folder / f"seed-{draw}" if folder else None,
                progress=subject.progress("fine-tuning"),
            )
            last.append(tuned.accuracy)
            best.append(tuned.best_accuracy)
        found = Evaluation(
            task=task.name,
            data=task.data,
            method="finetune",
            protocol=preset,
            result=spread(last) | {"best_epoch_accuracy": float(np.mean(best))},
            encoder=subject.which,
            layers=1,
            checkpoint=encoder_digest(subject.encoder),
            labels=drawn.budget.text,
            seeds=drawn.seeds,
            variant=drawn.variant | options(**(settings or {})),
            note="accuracy of the last epoch; that of the best epoch is chosen on the test set",
            details={
                "settings": {item.name: getattr(chosen, item.name) for item in fields(chosen)},
                "train_images": len(drawn.rows[0]),
                "test_images": len(task.test_labels),
            },
        )
        if finished is not None:
            finished(found)
    return found


@contextmanager
def _under_way(folder: Path | None) -> Iterator[Path | None]:
    """The folder, which is removed when all went well.

    None where another process is at work in it, or where it cannot be made.
    """
    with ExitStack() as stack:
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(alone_in(folder))
        except OSError as error:
            said = f"{folder} cannot be used, so that a stop would cost all: {error}"
            warnings.warn(said, Notice, stacklevel=4)
            folder = None
        try:
            yield folder
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            for empty in (folder, folder.parent) if folder else ():
                with suppress(OSError):  # it is gone, or something is under way in it
                    empty.rmdir()


def _name(subject: Subject, task: Labelled, chosen: FinetuneSettings, drawn: Draws) -> str:
    """Of what is under way: a digest of all that it depends on."""
    data = task.name, identity(task.train), identity(task.test)
    computed = subject.device.type, str(compute_dtype(chosen.precision, subject.device))
    parts = [encoder_digest(subject.encoder), *data, *computed, asdict(chosen), drawn.seeds]
    digest = hashlib.sha256(json.dumps([*parts, VERSION], default=str).encode())
    for rows in drawn.rows:
        digest.update(rows.tobytes())
    return digest.hexdigest()[:16]


def _settings(preset: str, changes: Mapping[str, Any]) -> FinetuneSettings:
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r} is not known: choose one of {', '.join(PRESETS)}")
    known = {item.name for item in fields(FinetuneSettings)} - {"seed"}  # which has its own option
    if unknown := sorted(set(changes) - known):
        raise ValueError(
            f"{unknown[0]} is no setting of fine-tuning: choose from {', '.join(sorted(known))}"
        )
    changes = dict(changes)
    if "lr" in changes:  # one of the two ways to say it
        changes.setdefault("lr_per_256", None)
    elif "lr_per_256" in changes:
        changes.setdefault("lr", None)
    try:
        return replace(PRESETS[preset], **changes)
    except ValidationError as error:
        raise ValueError(f"fine-tuning: {first_sentence(error)}") from None
