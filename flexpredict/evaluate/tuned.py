"""Evaluation by fine-tuning: a preset on a task, with a label budget and seeds."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from flexpredict.config import first_sentence
from flexpredict.engine.encoders import encoder_digest
from flexpredict.evaluate.finetune import PRESETS, FinetuneSettings, finetune
from flexpredict.evaluate.labels import Rows
from flexpredict.evaluate.results import Evaluation, options, spread
from flexpredict.evaluate.subject import Draws, Subject
from flexpredict.evaluate.tasks import Labelled
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
) -> Evaluation:
    """Test accuracy of the last epoch; each draw is another label budget and another seed.

    unfinished: the folder of what is under way, from which the same call goes on.
    """
    if subject.image_size is not None:
        raise ValueError("image_size: an encoder is fine-tuned at its own size, so leave it out")
    chosen = _settings(preset, settings or {})
    drawn = Draws.of(task, labels, seed, draws, seeded=True)
    last, best, folders = [], [], []
    for draw, rows in zip(drawn.seeds, drawn.rows, strict=True):
        settled = replace(chosen, seed=draw)
        name = _name(subject, task, settled, rows)
        folders.append(unfinished / name if unfinished and name else None)
        found = finetune(
            subject.encoder,
            task.train,
            task.test,
            settled,
            device=subject.device,
            train_rows=rows,
            kept=folders[-1],
            progress=subject.progress("fine-tuning"),
        )
        last.append(found.accuracy)
        best.append(found.best_accuracy)
    for folder in filter(None, folders):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # others may be under way beside it
            folder.parent.rmdir()
    return Evaluation(
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


def _name(subject: Subject, task: Labelled, settings: FinetuneSettings, rows: Rows) -> str | None:
    """Of one fine-tuning: a digest of all that it depends on, or None where nobody can tell."""
    stamps = task.train.stamp(), task.test.stamp()
    if None in stamps:
        return None
    about = [task.name, task.train.classes, task.test.classes, asdict(settings), VERSION]
    parts = [encoder_digest(subject.encoder), *stamps, *about]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode())
    for numbers in (rows, task.train.labels, task.test.labels):
        digest.update(np.asarray(numbers).tobytes())
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
