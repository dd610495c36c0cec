"""Evaluations of a frozen encoder on labelled images: probe, logistic, knn."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from flexpredict.engine.encoders import encoder_digest
from flexpredict.evaluate.features import extract
from flexpredict.evaluate.heads import Head
from flexpredict.evaluate.knn import knn_accuracy
from flexpredict.evaluate.labels import Rows, held_out
from flexpredict.evaluate.linear import PROTOCOLS, Epochs, Protocol, in_order, shuffled, train_heads
from flexpredict.evaluate.logistic import RELEASED_PENALTIES, fit_logistic
from flexpredict.evaluate.results import Evaluation, options, spread
from flexpredict.evaluate.ridge import ridge_probe
from flexpredict.evaluate.subject import Draws, Subject, TrainFeatures, looks, test_features
from flexpredict.evaluate.tasks import Labelled

_HELD_OUT = 0.1  # of the training images, to choose heads and penalties on
_PENALTIES = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2)
LOGISTIC_PROTOCOLS = ("default", *RELEASED_PENALTIES)
# Where each class has one image, nothing can be held out to choose on.
_UNCHOSEN_HEAD, _UNCHOSEN_PENALTY = Head(lr=0.1, weight_decay=0.0, batch_norm=True), 1.0
_UNCHOSEN = "too few labels to hold any out, so nothing was chosen"


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
) -> Evaluation:
    """Linear probes, a grid of heads trained jointly.

    layers: only heads on this many last layers. draws: how often the label budget is drawn anew.
    augment: whether training images are seen through random crops; None as the protocol has it.
    """
    plan = _plan(protocol, subject, task, layers, augment, epochs)
    drawn = Draws.of(task, labels, seed, draws)
    work = _Probing(subject, task, plan, drawn)
    found = [work.best(rows, draw) for rows, draw in zip(drawn.rows, drawn.seeds, strict=True)]
    chosen = [one.head for one in found]
    notes = dict.fromkeys(one.note for one in found)
    if plan.augment != PROTOCOLS[protocol].augment:
        seen = "through" if plan.augment else "without"
        notes[f"training images were seen {seen} random crops"] = None
    return Evaluation(
        task=task.name,
        data=task.data,
        method="probe",
        protocol=plan.name,
        result=spread([one.accuracy for one in found])
        | {name: float(np.mean([one.also[name] for one in found])) for name in found[0].also},
        encoder=subject.which,
        layers=_one_or_all([head.layers for head in chosen]),
        checkpoint=encoder_digest(subject.encoder),
        labels=drawn.budget.text,
        seeds=drawn.seeds,
        variant=subject.variant
        | drawn.variant
        | options(layers=layers, augment=augment, epochs=epochs),
        note="; ".join(notes),
        details={
            "heads": len(plan.heads),
            "chosen": [{name: getattr(head, name) for name in head.__slots__} for head in chosen],
            "epochs": plan.schedule.epochs,
            "batch_size": min(plan.batch_size, len(drawn.rows[0])),
            "train_images": len(drawn.rows[0]),
            "test_images": len(task.test_labels),
        },
    )


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
    if layers is not None and layers > depth:
        raise ValueError(f"layers={layers}: this encoder has {depth}")
    heads = [replace(head, layers=layers or min(head.layers, depth)) for head in plan.heads]
    schedule = task.task.schedule if name == "vissl-sgd" else plan.schedule
    if epochs is not None:  # milestones keep their place in the whole
        stretch = epochs / schedule.epochs
        milestones = tuple(max(1, round(stretch * mark)) for mark in schedule.milestones)
        schedule = replace(schedule, epochs=epochs, milestones=milestones)
    return replace(
        plan,
        heads=tuple(dict.fromkeys(heads)),
        schedule=schedule,
        augment=plan.augment if augment is None else augment,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    head: Head
    accuracy: float
    also: dict[str, float]
    note: str


class _Probing:
    """One protocol on one task; the features of all draws are computed once."""

    def __init__(self, subject: Subject, task: Labelled, plan: Protocol, drawn: Draws) -> None:
        self.subject, self.task, self.plan = subject, task, plan
        self.layers = max(head.layers for head in plan.heads)
        self.test = test_features(subject, task, self.layers)
        self.train = None if plan.augment else TrainFeatures(subject, task, drawn, self.layers)

    def best(self, rows: Rows, seed: int) -> _Found:
        """The head that counts, by the protocol's way to choose it."""
        plan, task = self.plan, self.task
        if plan.select == "test":
            scores = self._trained(plan.heads, rows, seed)(self.test, task.test_labels)
            best = max(range(len(scores)), key=scores.__getitem__)
            groups: dict[str, float] = {}
            for score, head in zip(scores, plan.heads, strict=True):
                name = "last" if head.layers == 1 else f"last-{head.layers}"
                groups[name] = max(score, groups.get(name, 0.0))
            return _Found(plan.heads[best], scores[best], groups, plan.note)
        kept, held = held_out(task.train_labels.numpy()[rows], _HELD_OUT, seed)
        chosen, also, note = _UNCHOSEN_HEAD, {}, _UNCHOSEN
        if len(held):
            scores = self._trained(plan.heads, rows[kept], seed)(*self._plain(rows[held]))
            chosen = plan.heads[max(range(len(scores)), key=scores.__getitem__)]
            also, note = {"held_out": max(scores)}, plan.note
        (accuracy,) = self._trained((chosen,), rows, seed)(self.test, task.test_labels)
        return _Found(chosen, accuracy, also, note)

    def _trained(
        self, heads: tuple[Head, ...], rows: Rows, seed: int
    ) -> Callable[[Tensor, Tensor], list[float]]:
        """Accuracies on any features of heads that were trained on these rows."""
        plan, device = self.plan, self.subject.device
        joint = train_heads(
            heads,
            self._epochs(rows, seed),
            schedule=plan.schedule,
            batch_size=min(plan.batch_size, len(rows)),
            dim=self.subject.encoder.dim,
            classes=self.task.classes,
            optimizer=plan.optimizer,
            seed=seed,
            device=device,
            progress=self.subject.progress("epochs"),
        )

        def accuracies(features: Tensor, labels: Tensor) -> list[float]:
            batches = in_order(features, labels)
            return joint.accuracies((x.to(device), y.to(device)) for x, y in batches)

        return accuracies

    def _epochs(self, rows: Rows, seed: int) -> Epochs:
        size = self.plan.batch_size
        if self.train is None:
            return looks(self.subject, self.task, rows, self.layers, size, seed)
        return shuffled(*self.train.of(rows), size, seed)

    def _plain(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features of training images without random crops."""
        if self.train is not None:
            return self.train.of(rows)
        features = extract(
            self.subject.encoder,
            self.task.train,
            layers=self.layers,
            image_size=self.subject.image_size,
            transform=self.task.task.test,
            resize=self.subject.resize,
            rows=rows,
        )
        return features, self.task.train_labels[rows]


def logistic(
    subject: Subject,
    task: Labelled,
    *,
    protocol: str = "default",
    labels: str | float | None = None,
    layers: int = 1,
    draws: int = 1,
    seed: int = 0,
) -> Evaluation:
    """L2 logistic regression to convergence, in float64.

    `default` chooses the penalty on held-out training images. `released-1%` is the paper's: a fixed
    penalty, no intercept, float32 features, those of test images standardised by their own
    statistics; also given after 100 iterations, the number of passes that its solver was allowed.
    """
    released = RELEASED_PENALTIES.get(protocol)
    if protocol not in LOGISTIC_PROTOCOLS:
        raise ValueError(
            f"protocol {protocol!r} is not known: choose one of {', '.join(LOGISTIC_PROTOCOLS)}"
        )
    if released is not None:
        subject = replace(subject, precision="float32")
    drawn = Draws.of(task, labels, seed, draws)
    train = TrainFeatures(subject, task, drawn, layers)
    test = test_features(subject, task, layers).to(subject.device).double()
    accuracies, early, converged, penalties = [], [], True, []
    note = "test features are standardised by test statistics, as released"
    for draw, rows in zip(drawn.seeds, drawn.rows, strict=True):
        x, y = train.of(rows)
        x = x.double()
        if released is not None:
            penalties.append(released)
            fixed: dict[str, Any] = {"penalty": released, "intercept": False}
            short = fit_logistic(x, y, most_iterations=100, rescaled=False, **fixed)
            early.append(short.accuracy(test, task.test_labels, own_statistics=True))
            fit = fit_logistic(x, y, **fixed)
            accuracies.append(fit.accuracy(test, task.test_labels, own_statistics=True))
        else:
            penalty, note = _penalty(x, y, draw)
            penalties.append(penalty)
            fit = fit_logistic(x, y, penalty=penalty)
            accuracies.append(fit.accuracy(test, task.test_labels))
        converged &= fit.converged
    result = spread(accuracies)
    if early:
        result["after_100_iterations"] = float(np.mean(early))
    return Evaluation(
        task=task.name,
        data=task.data,
        method="logistic",
        protocol=protocol,
        result=result,
        encoder=subject.which,
        layers=layers,
        checkpoint=encoder_digest(subject.encoder),
        labels=drawn.budget.text,
        seeds=drawn.seeds,
        variant=subject.variant | drawn.variant | options(layers=layers if layers > 1 else None),
        note=note,
        details={
            "penalty": _one_or_all(penalties),
            "converged": converged,
            "train_images": len(drawn.rows[0]),
            "test_images": len(test),
        },
    )


def _penalty(x: Tensor, y: Tensor, seed: int) -> tuple[float, str]:
    kept, held = held_out(y.cpu().numpy(), _HELD_OUT, seed)
    if not len(held):
        return _UNCHOSEN_PENALTY, _UNCHOSEN
    scores = [
        fit_logistic(x[kept], y[kept], penalty=penalty, tolerance=1e-4).accuracy(x[held], y[held])
        for penalty in _PENALTIES
    ]
    best = _PENALTIES[max(range(len(scores)), key=scores.__getitem__)]
    return best, "the penalty was chosen on held-out training images"


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
) -> Evaluation:
    """Weighted nearest neighbours, and a ridge probe in closed form on the same features."""
    drawn = Draws.of(task, labels, seed, draws)
    if (fewest := min(map(len, drawn.rows))) < neighbours:
        raise ValueError(
            f"{neighbours} neighbours were asked for, but there are {fewest} labelled images: ask "
            f"for fewer with --neighbours"
        )
    train = TrainFeatures(subject, task, drawn, layers)
    test = test_features(subject, task, layers).to(subject.device)
    truth = task.test_labels.to(subject.device)
    near, ridge = [], []
    for draw, rows in zip(drawn.seeds, drawn.rows, strict=True):
        x, y = train.of(rows)
        near.append(knn_accuracy(x, y, test, truth, neighbours=neighbours, temperature=temperature))
        ridge.append(ridge_probe(x, y, test, truth, seed=draw).accuracy)
    warm = options(temperature=temperature if temperature != 0.07 else None)
    return Evaluation(
        task=task.name,
        data=task.data,
        method="knn",
        protocol=f"k{neighbours}",
        result=spread(near) | {"ridge": float(np.mean(ridge))},
        encoder=subject.which,
        layers=layers,
        checkpoint=encoder_digest(subject.encoder),
        labels=drawn.budget.text,
        seeds=drawn.seeds,
        variant=subject.variant
        | drawn.variant
        | options(layers=layers if layers > 1 else None)
        | warm,
        note="ridge: a probe in closed form, its penalty chosen on held-out training images",
        details={
            "neighbours": neighbours,
            "temperature": temperature,
            "train_images": len(drawn.rows[0]),
            "test_images": len(test),
        },
    )


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values
