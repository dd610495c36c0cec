"""Schedules against the released ones: the vectors, and the table of steps in the specification."""

import numpy as np
import pytest
from torch import nn

from flexpredict.build import build_objective, build_schedule
from flexpredict.config import settings_from
from flexpredict.engine.optim import Schedule, parameter_groups, set_step

# (recipe, step counted from 1, learning rate, weight decay) at 625 steps per epoch
TABLE = [
    ("h14", 1, 2.00032e-4, 0.040000),
    ("h14", 626, 2.20032e-4, 0.040010),
    ("h14", 24_999, 9.99968e-4, 0.055561),
    ("h14", 25_000, 1.0e-3, 0.055562),
    ("h14", 25_001, 1.0e-3 - 9.3e-14, 0.055563),
    ("h14", 62_501, 8.743747e-4, 0.130003),
    ("h14", 155_626, 9.287245e-5, 0.374935),
    ("h14", 156_249, 8.942504e-5, 0.375883),
    ("h14", 156_250, 8.941956e-5, 0.375885),
    ("h14", 187_500, 8.941956e-5, 0.375885),
    ("b16", 1, 2.00064e-4, 0.040000),
    ("b16", 9_375, 8.0e-4, 0.040555),
    ("b16", 62_501, 7.641635e-4, 0.064116),
    ("b16", 187_500, 4.640931e-4, 0.220000),
    ("l16", 374_376, 1.000050e-4, 0.399998),
    ("l16", 375_000, 1.0e-4, 0.400000),
]


def _schedule(size: str) -> Schedule:
    return build_schedule(settings_from({}, recipe=f"paper/stop-vit-{size}"), 625)


@pytest.mark.parametrize(("size", "step", "lr", "weight_decay"), TABLE)
def test_schedule__table_of_the_specification(
    size: str, step: int, lr: float, weight_decay: float
) -> None:
    schedule = _schedule(size)
    assert schedule.learning_rate(step - 1) == pytest.approx(lr, rel=6e-7)
    assert schedule.weight_decay(step - 1) == pytest.approx(weight_decay, abs=6e-7)


@pytest.mark.parametrize(("name", "size"), [("B", "b16"), ("H", "h14")])
def test_schedule__equals_the_released_vectors(
    name: str, size: str, vectors: dict[str, dict[str, np.ndarray]]
) -> None:
    schedule, data = _schedule(size), vectors["schedules"]
    steps = data[f"{name}_step"].tolist()
    assert len(steps) > 150
    lr = [schedule.learning_rate(step) for step in steps]
    weight_decay = [schedule.weight_decay(step) for step in steps]
    np.testing.assert_allclose(lr, data[f"{name}_lr"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(weight_decay, data[f"{name}_wd"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("size", "last"), [("h14", 0.9999999787), ("b16", 0.9999999893)])
def test_schedule__ema(size: str, last: float) -> None:
    schedule = _schedule(size)
    assert schedule.ema(0) == 0.996
    assert schedule.ema(schedule.steps - 1) == pytest.approx(last, abs=5e-11)


def test_schedule__scales_with_the_batch() -> None:
    half = build_schedule(
        settings_from({"batch_size": 1024}, recipe="paper/stop-vit-b16"), steps_per_epoch=1250
    )
    assert half.lr == pytest.approx(4e-4)
    assert half.ema_start == pytest.approx(0.996**0.5)
    assert half.steps == 750_000


def test_groups__vectors_and_biases_are_not_decayed() -> None:
    objective = build_objective(
        settings_from({"model": "vit_nano", "patch_size": 8, "image_size": 64})
    )
    modules: list[nn.Module] = [objective.encoder, objective.predictor]
    groups = parameter_groups(modules)
    names = {id(p): n for n, p in objective.named_parameters()}
    decayed = {names[id(p)] for g in groups if g["decay"] for p in g["params"]}
    plain = {names[id(p)] for g in groups if not g["decay"] for p in g["params"]}
    assert "predictor.predictor_embed.weight" in decayed  # A is decayed too
    assert "predictor.mask_token" in decayed
    assert {"predictor.predictor_embed.bias", "encoder.norm.weight"} <= plain
    trained = {n for m in ("encoder.", "predictor.") for n, p in objective.named_parameters()
               if n.startswith(m) and p.requires_grad}  # fmt: skip
    assert decayed | plain == trained
    assert not decayed & plain
    schedule = _schedule("b16")
    set_step(groups, schedule, 1000)
    assert {g["lr"] for g in groups} == {schedule.learning_rate(1000)}
    assert {g["weight_decay"] for g in groups} == {schedule.weight_decay(1000), 0.0}
