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


def test_together__is_the_best_batch_with_what_helped_on_its_own(headline: Any) -> None:
    variants: dict[str, dict[str, Any]] = {
        "start": {}, "start, layers": {"target_layers": 6},
        "batch 256": {"batch_size": 256, "ema": 0.9}, "batch 128": {"batch_size": 128, "ema": 0.95},
        "batch 256, flip": {"batch_size": 256, "ema": 0.9, "augment": "crop-flip"},
        "batch 128, layers": {"batch_size": 128, "ema": 0.95, "target_layers": 6},
    }  # fmt: skip
    scores = dict(zip(variants, [5, 4, 6, 7, 6.5, 6.9], strict=True))
    assert headline.together(_lines(scores), variants) == {
        "batch_size": 128, "ema": 0.95, "augment": "crop-flip"
    }  # fmt: skip
    scores = dict(zip(variants, [8, 9, 6, 7, 5, 7.5], strict=True))
    assert headline.together(_lines(scores), variants) == {"target_layers": 6}


def test_mildest_best__of_equals_is_the_smaller(headline: Any) -> None:
    values = {"a": 0.1, "b": 0.25, "c": 0.5}
    seeds = (0, 1)
    assert headline.mildest_best(_lines({"a": 5, "b": 6, "c": 6.05}, seeds), values) == 0.25
    assert headline.mildest_best(_lines({"a": 5, "b": 6, "c": 6.2}, seeds), values) == 0.5


def test_stages__hand_on_what_they_find(
    headline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Study] = {}
    good = {"batch 256": 9.0, "ema 0.99833": 10.0, "noise 0.1": 7.0, "lr 0.001": 7.0}

    def run(_: Any, studies: dict[str, Study]) -> list[list[dict[str, Any]]]:
        made.update(studies)
        return [
            _lines({variant: good.get(variant, 1.0) for variant in study.variants})
            for study in studies.values()
        ]

    monkeypatch.setattr(headline.Stages, "_run", run)
    monkeypatch.setattr(headline.Stages, "_epochs", lambda *_: 77)
    stages = headline.Stages(tmp_path, 1, None)
    settings, noise_std = stages.tuned()
    assert settings["batch_size"] == 256
    assert settings["ema"] == pytest.approx(1 - 0.005 / 3)
    assert noise_std == 0.1
    length, noise = (trials(made[name], headline.DATA)[0].settings for name in ("length", "noise"))
    assert (length.epochs, length.ema, length.positions) == (60, 0.995, "sincos")
    assert (noise.epochs, noise.ema, noise.positions) == (20, 0.995, "stop")
    stages.headline(settings, noise_std)
    stages.beside(settings)
    runs = trials(made["headline"], headline.DATA)
    assert {run.seed for run in runs} == {20, 21, 22, 23, 24}
    one, two = (run.settings.model_dump() for run in runs[:2])
    changed = {name for name in one if one[name] != two[name]}
    assert changed == {"positions", "noise_std"}  # all else is equal on both arms
    assert (one["lr"], one["epochs"], one["noise_std"], two["noise_std"]) == (7e-4, 60, 0, 0.1)
    mae, first = (run.settings for run in trials(made["beside"], headline.DATA)[:2])
    assert (mae.objective, mae.masking, mae.lr, mae.epochs) == ("mae", "random", 1e-3, 77)
    assert (first.objective, first.batch_size, first.epochs) == ("ijepa", 1024, 60)
