"""The rules of docs/plan.md, as benchmarks/headline.py follows them, on made-up scores."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flexpredict.study.plan import Study, trials

ROOT = Path(__file__).parents[2]


@pytest.fixture
def headline(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import headline

    return headline


def _lines(scores: dict[str, float], seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    return [
        {"variant": name, "seed": seed, "found": {"held out, kNN": score + seed}}
        for name, score in scores.items()
        for seed in seeds
    ]


def test_better_changes__takes_the_best_of_each_setting_that_beats_the_start(headline: Any) -> None:
    variants = {
        "start": {}, "lr a": {"lr": 0.1}, "lr b": {"lr": 0.2}, "ema": {"ema": 0.9},
        "layers": {"target_layers": 3},
    }  # fmt: skip
    study = Study(title="", question="", recipe="demo", variants=variants, baseline="start")
    scores = {"start": 5.0, "lr a": 5.5, "lr b": 6.0, "ema": 4.9, "layers": 7.0}
    found = headline.better_changes(_lines(scores), study)
    assert list(found.items()) == [("layers", {"target_layers": 3}), ("lr b", {"lr": 0.2})]


def test_mildest_best__of_equals_is_the_smaller(headline: Any) -> None:
    values = {"a": 0.1, "b": 0.25, "c": 0.5}
    seeds = (0, 1)
    assert headline.mildest_best(_lines({"a": 5, "b": 6, "c": 6.05}, seeds), values) == 0.25
    assert headline.mildest_best(_lines({"a": 5, "b": 6, "c": 6.2}, seeds), values) == 0.5


def test_stages__hand_on_what_they_find(
    headline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Study] = {}

    def run(_: Any, name: str, study: Study) -> list[dict[str, Any]]:
        made[name] = study
        good = {"lr 2e-3": 9.0, "layers 6": 8.0, "together": 10.0, "noise 0.5": 7.0, "lr 0.001": 7}
        return _lines({variant: good.get(variant, 1.0) for variant in study.variants})

    monkeypatch.setattr(headline.Stages, "_run", run)
    monkeypatch.setattr(headline.Stages, "_epochs", lambda *_: 77)
    stages = headline.Stages(tmp_path, 1, None)
    settings = stages.settings()
    assert settings == {"lr": 2e-3, "target_layers": 6}
    assert made["2-together"].variants == {"lr 2e-3": {"lr": 2e-3}, "together": settings}
    assert stages.noise_std(settings) == 0.5
    stages.headline(settings, 0.5)
    stages.mae(settings)
    runs = trials(made["4-headline"], headline.DATA)
    assert {run.seed for run in runs} == {10, 11, 12, 13, 14}
    one, two = (run.settings.model_dump() for run in runs[:2])
    changed = {name for name in one if one[name] != two[name]}
    assert changed == {"positions", "noise_std"}  # all else is equal on both arms
    assert one["lr"] == 2e-3
    assert one["epochs"] == 60
    mae = trials(made["6-mae"], headline.DATA)[0].settings
    assert (mae.objective, mae.masking, mae.lr, mae.epochs) == ("mae", "random", 1e-3, 77)
