"""Evaluations of a frozen encoder on labelled images: probe, logistic, knn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexpredict.data.random import Stream, permute
from flexpredict.data.sources import Progress
from flexpredict.data.transforms import read_random_images
from flexpredict.engine.encoders import encoder_digest
from flexpredict.evaluate import features as frozen_features
from flexpredict.evaluate.heads import Head
from flexpredict.evaluate.knn import knn_accuracy
from flexpredict.evaluate.labels import Budget, Rows, held_out
from flexpredict.evaluate.linear import (
    PROTOCOLS,
    Batch,
    Epochs,
    Protocol,
    in_order,
    shuffled,
    train_heads,
)
from flexpredict.evaluate.logistic import RELEASED_PENALTY, fit_logistic
from flexpredict.evaluate.results import Evaluation, spread
from flexpredict.evaluate.ridge import ridge_probe
from flexpredict.evaluate.tasks import Labelled
from flexpredict.model.vit import Encoder, Resize, Size

Told = Callable[[str], Progress]  # progress of what is named
_HELD_OUT = 0.1  # of the training images, to choose heads and penalties on
_PENALTIES = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2)
LOGISTIC_PROTOCOLS = ("default", "released-1%")


@dataclass(frozen=True, slots=True)
class Subject:
    """The encoder under study, and how images get to it."""

    encoder: Encoder
    which: str = "target"
    image_size: Size | None = None
    resize: Resize = "recompute"

    @property
    def device(self) -> torch.device:
        return self.encoder.pos_embed.device


def probe(
    subject: Subject,
    task: Labelled,
    *,
    protocol: str = "default",
    labels: str | float | None = None,
    layers: int | None = None,
    draws: int = 1,
    augment: bool | None = None,
    epochs: int | None = None,
    seed: int = 0,
    told: Told | None = None,
) -> Evaluation:
    """Linear probes, a grid of heads trained jointly.

    layers: only heads on this many last layers. draws: how often the label budget is drawn anew.
    augment: whether training images are seen through random crops; None as the protocol has it.
    """
    plan = _plan(protocol, subject, task, layers, augment, epochs)
    budget = budget_of(task, labels)
    most = max(head.layers for head in plan.heads)
    test = _features(subject, task, "test", most, told)
    train = None if plan.augment else _features(subject, task, "train", most, told)
    seeds = seeds_of(budget, seed, draws)
    found: list[tuple[Head, float, dict[str, Any]]] = []
    for draw in seeds:
        rows = budget.rows(task.train, task.train_labels.numpy(), draw)

        def epochs_of(some: Rows, draw: int = draw) -> Epochs:
            if train is None:
                return _augmented(subject, task, some, most, plan.batch_size, draw)
            known = task.train_labels[some].to(subject.device)
            part = train[some].to(subject.device)
            return shuffled(part, known, plan.batch_size, draw)

        found.append(_best(plan, subject, task, rows, epochs_of, test, train, draw, told))
    head = found[0][0]
    return Evaluation(
        task=task.name,
        method="probe",
        protocol=plan.name,
        result=spread([accuracy for _, accuracy, _ in found]) | found[0][2],
        encoder=subject.which,
        layers=head.layers,
        checkpoint=encoder_digest(subject.encoder),
        labels=budget.text,
        seeds=seeds,
        note=plan.note + ("" if plan.augment == PROTOCOLS[protocol].augment else
                          "; training images were seen without random crops"),
        details={
            "heads": len(plan.heads),
            "chosen": {name: getattr(head, name) for name in head.__slots__},
            "epochs": plan.schedule.epochs,
            "batch_size": plan.batch_size,
            "train_images": len(rows),
            "test_images": len(task.test_labels),
        },
    )  # fmt: skip


def _plan(
    name: str,
    subject: Subject,
    task: Labelled,
    layers: int | None,
    augment: bool | None,
    epochs: int | None,
) -> Protocol:
    """The protocol as this task and encoder have it."""
    if name not in PROTOCOLS:
        raise ValueError(f"protocol {name!r} is not known: choose one of {', '.join(PROTOCOLS)}")
    plan, depth = PROTOCOLS[name], len(subject.encoder.blocks)
    heads = [replace(head, layers=min(head.layers, depth)) for head in plan.heads]
    heads = list(dict.fromkeys(heads))
    if layers is not None:
        if layers > depth:
            raise ValueError(f"layers={layers}: this encoder has {depth}")
        heads = list(dict.fromkeys(replace(head, layers=layers) for head in heads))
    schedule = task.task.schedule if name == "vissl-sgd" else plan.schedule
    if epochs is not None:  # milestones keep their place in the whole
        stretch = epochs / schedule.epochs
        milestones = tuple(round(stretch * milestone) for milestone in schedule.milestones)
        schedule = replace(schedule, epochs=epochs, milestones=milestones)
    return replace(
        plan,
        heads=tuple(heads),
        schedule=schedule,
        augment=plan.augment if augment is None else augment,
    )


def _best(
    plan: Protocol,
    subject: Subject,
    task: Labelled,
    rows: Rows,
    epochs_of: Callable[[Rows], Epochs],
    test: Tensor,
    train: Tensor | None,
    seed: int,
    told: Told | None,
) -> tuple[Head, float, dict[str, Any]]:
    """The head that counts, its test accuracy, and what else a reader wants to know."""

    def trained(heads: tuple[Head, ...], some: Rows) -> Callable[[Tensor, Tensor], list[float]]:
        joint = train_heads(
            heads,
            epochs_of(some),
            schedule=plan.schedule,
            batch_size=min(plan.batch_size, len(some)),
            dim=subject.encoder.dim,
            classes=task.classes,
            optimizer=plan.optimizer,
            seed=seed,
            device=subject.device,
            progress=told("epochs") if told else None,
        )

        def accuracies(features: Tensor, labels: Tensor) -> list[float]:
            batches = in_order(features, labels)
            place = subject.device
            return joint.accuracies((x.to(place), y.to(place)) for x, y in batches)

        return accuracies

    if plan.select == "test":
        scores = trained(plan.heads, rows)(test, task.test_labels)
        best = max(range(len(scores)), key=scores.__getitem__)
        by_layers = {
            _group(layers): max(
                score
                for score, head in zip(scores, plan.heads, strict=True)
                if head.layers == layers
            )
            for layers in sorted({head.layers for head in plan.heads})
        }
        return plan.heads[best], scores[best], by_layers
    kept, held = held_out(task.train_labels.numpy()[rows], _HELD_OUT, seed)
    if train is None:
        train_held = _features_of(subject, task, rows[held], max(h.layers for h in plan.heads))
    else:
        train_held = train[rows[held]]
    scores = trained(plan.heads, rows[kept])(train_held, task.train_labels[rows[held]])
    chosen = plan.heads[max(range(len(scores)), key=scores.__getitem__)]
    (accuracy,) = trained((chosen,), rows)(test, task.test_labels)
    return chosen, accuracy, {"held_out": max(scores)}


def _group(layers: int) -> str:
    return "last" if layers == 1 else f"last-{layers}"


def logistic(
    subject: Subject,
    task: Labelled,
    *,
    protocol: str = "default",
    labels: str | float | None = None,
    layers: int = 1,
    draws: int = 1,
    seed: int = 0,
    told: Told | None = None,
) -> Evaluation:
    """L2 logistic regression to convergence.

    `default` chooses the penalty on held-out training images. `released-1%` is the paper's: a fixed
    penalty, no intercept, test features standardised by their own statistics; also given after 100
    iterations, the number of passes that its solver was allowed.
    """
    if protocol not in LOGISTIC_PROTOCOLS:
        raise ValueError(
            f"protocol {protocol!r} is not known: choose one of {', '.join(LOGISTIC_PROTOCOLS)}"
        )
    budget = budget_of(task, labels)
    train = _features(subject, task, "train", layers, told)
    test = _features(subject, task, "test", layers, told).to(subject.device)
    seeds, accuracies, early, converged, penalties = seeds_of(budget, seed, draws), [], [], True, []
    for draw in seeds:
        rows = budget.rows(task.train, task.train_labels.numpy(), draw)
        x, y = train[rows].to(subject.device), task.train_labels[rows]
        if protocol == "released-1%":
            penalties.append(RELEASED_PENALTY)
            options: dict[str, Any] = {"penalty": RELEASED_PENALTY, "intercept": False}
            short = fit_logistic(x, y, most_iterations=100, **options)
            early.append(short.accuracy(test, task.test_labels, own_statistics=True))
            fit = fit_logistic(x, y, **options)
            accuracies.append(fit.accuracy(test, task.test_labels, own_statistics=True))
        else:
            kept, held = held_out(y.numpy(), _HELD_OUT, draw)
            scores = [
                fit_logistic(x[kept], y[kept], penalty=penalty, tolerance=1e-4).accuracy(
                    x[held], y[held]
                )
                for penalty in _PENALTIES
            ]
            penalties.append(_PENALTIES[max(range(len(scores)), key=scores.__getitem__)])
            fit = fit_logistic(x, y, penalty=penalties[-1])
            accuracies.append(fit.accuracy(test, task.test_labels))
        converged &= fit.converged
    result = spread(accuracies)
    if early:
        result["after_100_iterations"] = float(np.mean(early))
    return Evaluation(
        task=task.name,
        method="logistic",
        protocol=protocol,
        result=result,
        encoder=subject.which,
        layers=layers,
        checkpoint=encoder_digest(subject.encoder),
        labels=budget.text,
        seeds=seeds,
        note="the penalty was chosen on held-out training images"
        if protocol == "default"
        else "test features are standardised by test statistics, as released",
        details={
            "penalty": penalties[0],
            "converged": converged,
            "train_images": len(rows),
            "test_images": len(test),
        },
    )


def knn(
    subject: Subject,
    task: Labelled,
    *,
    labels: str | float | None = None,
    neighbours: int = 20,
    temperature: float = 0.07,
    layers: int = 1,
    draws: int = 1,
    seed: int = 0,
    told: Told | None = None,
) -> Evaluation:
    """Weighted nearest neighbours, and a ridge probe in closed form on the same features."""
    budget = budget_of(task, labels)
    train = _features(subject, task, "train", layers, told)
    test = _features(subject, task, "test", layers, told).to(subject.device)
    test_labels = task.test_labels.to(subject.device)
    seeds, near, ridge = seeds_of(budget, seed, draws), [], []
    for draw in seeds:
        rows = budget.rows(task.train, task.train_labels.numpy(), draw)
        x, y = train[rows].to(subject.device), task.train_labels[rows].to(subject.device)
        near.append(
            knn_accuracy(x, y, test, test_labels, neighbours=neighbours, temperature=temperature)
        )
        ridge.append(ridge_probe(x, y, test, test_labels, seed=draw).accuracy)
    return Evaluation(
        task=task.name,
        method="knn",
        protocol=f"k{neighbours}",
        result=spread(near) | {"ridge": spread(ridge)["accuracy"]},
        encoder=subject.which,
        layers=layers,
        checkpoint=encoder_digest(subject.encoder),
        labels=budget.text,
        seeds=seeds,
        note="ridge: a probe in closed form, its penalty chosen on held-out training images",
        details={
            "neighbours": neighbours,
            "temperature": temperature,
            "train_images": len(rows),
            "test_images": len(test),
        },
    )


def budget_of(task: Labelled, labels: str | float | None) -> Budget:
    return Budget.parse(task.labels if labels is None else labels)


def seeds_of(budget: Budget, seed: int, draws: int) -> list[int]:
    if draws > 1 and not budget.is_drawn:
        raise ValueError(
            f"draws={draws}: labels={budget.text} gives the same images every time; ask for a "
            f"share or a number per class"
        )
    return list(range(seed, seed + draws))


def _features(
    subject: Subject, task: Labelled, part: str, layers: int, told: Told | None
) -> Tensor:
    return frozen_features.cached(
        subject.encoder,
        getattr(task, part),
        layers=layers,
        image_size=subject.image_size,
        transform=task.task.test,
        resize=subject.resize,
        progress=told(f"{part} features") if told else None,
    )


def _features_of(subject: Subject, task: Labelled, rows: Rows, layers: int) -> Tensor:
    return frozen_features.extract(
        subject.encoder,
        task.train,
        layers=layers,
        image_size=subject.image_size,
        transform=task.task.test,
        resize=subject.resize,
        rows=rows,
    )


def _augmented(
    subject: Subject, task: Labelled, rows: Rows, layers: int, batch_size: int, seed: int
) -> Epochs:
    """Features of another look at the images every epoch."""
    encoder, transform = subject.encoder, task.task.train
    size = frozen_features.size_for(encoder, subject.image_size)
    batch_size = min(batch_size, len(rows))

    def epoch_batches(epoch: int) -> Iterator[Batch]:
        order = rows[permute(np.arange(len(rows)), len(rows), seed, Stream.ORDER, epoch)]
        for start in range(0, len(order) - batch_size + 1, batch_size):
            some = order[start : start + batch_size]
            yield _look(some, epoch), task.train_labels[some].to(subject.device)

    def _look(some: Rows, epoch: int) -> Tensor:
        parts = []
        for chunk in np.split(some, range(256, len(some), 256)):
            images = read_random_images(
                task.train, chunk, size, transform, encoder.in_channels, seed=seed, epoch=epoch
            )
            images = images.to(subject.device)
            parts.append(encoder.features(images, layers=layers, resize=subject.resize).float())
        return torch.cat(parts)

    return epoch_batches
