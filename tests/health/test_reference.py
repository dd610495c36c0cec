"""Bands of known runs: packed from lines, found again by settings or by name."""

import json
from typing import Any

import numpy as np
import pytest

from flexpredict.config import settings_from
from flexpredict.health import reference

DEMO = settings_from({"steps": 100}, recipe="demo")


def _runs(count: int = 3) -> list[Any]:
    return [
        (DEMO, [
            {"step": step, "loss": 1.0, "rankme_target": seed + step / 100, "loss_by_row": [1.0],
             "seconds": 1.0}
            for step in (1, 50, 100)
        ])
        for seed in range(count)
    ]  # fmt: skip


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = reference.pack(_runs(), "collapsed")
    known = {"demo": reference.pack(_runs(), "healthy"), "ema-off": failed}
    known["demo-long"] = known["demo"] | {"steps": 5000}
    known["demo-loud"] = known["demo"] | {"noise_std": 1.0}
    monkeypatch.setattr(reference, "_known", lambda: json.loads(json.dumps(known)))


@pytest.mark.usefixtures("packed")
def test_bands__lowest_median_highest_of_the_seeds() -> None:
    bands = reference.reference_bands("demo")
    assert set(bands) == {"loss", "rankme_target"}
    band = bands["rankme_target"]
    np.testing.assert_allclose(band.share, [0, 0.5, 1])
    np.testing.assert_allclose(band.low, [0.01, 0.5, 1.0])
    np.testing.assert_allclose(band.mid, [1.01, 1.5, 2.0])
    np.testing.assert_allclose(band.high, [2.01, 2.5, 3.0])
    assert band.at(0.75) == pytest.approx((0.75, 2.75))


@pytest.mark.usefixtures("packed")
def test_bands__of_a_run_are_those_of_healthy_runs_alike() -> None:
    assert reference._name_of(DEMO) == "demo"  # of 100 steps
    assert reference._name_of(DEMO.model_copy(update={"steps": 3000})) == "demo-long"
    in_epochs = DEMO.model_copy(update={"steps": None, "epochs": 1})
    assert reference._name_of(in_epochs) == "demo-long"
    assert reference._name_of(in_epochs, 200) == "demo"
    assert reference._name_of(DEMO.model_copy(update={"noise_std": 0.7})) == "demo-loud"
    assert reference._name_of(DEMO.model_copy(update={"noise_std": 1, "steps": 300})) == "demo-loud"
    assert reference.reference_bands(DEMO.model_copy(update={"seed": 9, "lr": 3e-3}))
    assert reference.reference_bands(DEMO.model_copy(update={"model": "vit_base"})) == {}
    assert reference.reference_of(DEMO) == "3 runs of 100 steps (demo)"
    assert reference.reference_of(DEMO.model_copy(update={"model": "vit_base"})) is None
    assert reference.reference_names()["ema-off"] == "collapsed"
    with pytest.raises(ValueError, match="there is no reference 'best'"):
        reference.reference_bands("best")


@pytest.mark.usefixtures("packed")
def test_readings__a_run_beside_the_band() -> None:
    lines = [
        {"step": 1, "loss": 1.0, "rankme_target": 5.0},
        {"step": 50, "loss": 0.5, "rankme_target": 4.0, "norm_A": None},
    ]
    found = {one.gauge: one for one in reference.readings(DEMO, lines)}
    assert set(found) == {"loss", "rankme_target"}
    assert found["rankme_target"][1:3] == (5.0, 4.0)
    assert found["rankme_target"].healthy == pytest.approx((0.5, 2.5))
    in_epochs = DEMO.model_copy(update={"steps": None, "epochs": 2})
    lines = [line | {"epoch": line["step"] / 50} for line in lines]
    assert reference.readings(in_epochs, lines) == list(found.values())  # also of 100 steps


@pytest.mark.parametrize(
    "recipe",
    [
        "demo", "small/stop-vit-t8-64", "small/stop-vit-s8-64", "small/stop-vit-s8-64@sincos",
        "small/stop-vit-s8-64@sincos-long", "small/stop-vit-t4-64",
    ],
)  # fmt: skip
def test_package__has_bands_of(recipe: str) -> None:
    settings = settings_from({}, recipe=recipe)
    bands = reference.reference_bands(settings)
    assert ("noise_over_signal" in bands) == (settings.positions == "stop")
    for name in ("rankme_target", "spread_target", "norm_A", "loss"):
        band = bands[name]
        assert band.share[0] == 0
        assert band.share[-1] == 1
        assert (band.low <= band.mid).all()
        assert (band.mid <= band.high).all()
    assert {"healthy", "collapsed", "drowned", "stalled"} <= set(
        reference.reference_names().values()
    )
