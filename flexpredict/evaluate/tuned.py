"""Evaluation by fine-tuning: a preset on a task, with a label budget and seeds."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from flexpredict.engine.encoders import encoder_digest
from flexpredict.evaluate.finetune import PRESETS, FinetuneSettings, finetune
from flexpredict.evaluate.frozen import Subject, Told, budget_of, seeds_of
from flexpredict.evaluate.results import Evaluation, spread
from flexpredict.evaluate.tasks import Labelled


def evaluate_finetune(
    subject: Subject,
    task: Labelled,
    *,
    preset: str = "small",
    settings: Mapping[str, Any] | None = None,
    labels: str | float | None = None,
    draws: int = 1,
    seed: int = 0,
    told: Told | None = None,
) -> Evaluation:
    """Test accuracy of the last epoch; each draw is another label budget and another seed."""
    chosen = _settings(preset, settings or {})
    budget = budget_of(task, labels)
    seeds = seeds_of(budget, seed, draws)
    last, best = [], []
    for draw in seeds:
        rows = budget.rows(task.train, task.train_labels.numpy(), draw)
        found = finetune(
            subject.encoder,
            task.train,
            task.test,
            replace(chosen, seed=draw),
            device=subject.device,
            train_rows=rows,
            progress=told("fine-tuning") if told else None,
        )
        last.append(found.accuracy)
        best.append(found.best_accuracy)
    return Evaluation(
        task=task.name,
        method="finetune",
        protocol=preset,
        result=spread(last) | {"best_epoch": float(np.mean(best))},
        encoder=subject.which,
        layers=1,
        checkpoint=encoder_digest(subject.encoder),
        labels=budget.text,
        seeds=seeds,
        note="accuracy of the last epoch; that of the best epoch is chosen on the test set",
        details={
            "settings": {item.name: getattr(chosen, item.name) for item in fields(chosen)},
            "train_images": len(rows),
            "test_images": len(task.test_labels),
        },
    )


def _settings(preset: str, changes: Mapping[str, Any]) -> FinetuneSettings:
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r} is not known: choose one of {', '.join(PRESETS)}")
    known = {item.name for item in fields(FinetuneSettings)}
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
    except TypeError as error:
        raise ValueError(f"fine-tuning settings of a wrong type: {error}") from None
