"""The rules of docs/plan.md, as benchmarks/headline.py follows them, on made-up scores."""

import sys
from pathlib import Path
from typing import Any

import pytest

from flexpredict.study.plan import Study, trials
from flexpredict.study.run import read_results, write_results

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


def test_mildest_best__of_equals_is_the_smaller(headline: Any) -> None:
    values = {"a": 0.1, "b": 0.25, "c": 0.5}
    seeds = (0, 1)
    assert headline.mildest_best(_lines({"a": 5, "b": 6, "c": 6.05}, seeds), values) == 0.25
    assert headline.mildest_best(_lines({"a": 5, "b": 6, "c": 6.2}, seeds), values) == 0.5


def test_command__studies_beside_nothing_are_refused(
    headline: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headline.py", "out", "tuned", "--with", "grid"])
    with pytest.raises(SystemExit):
        headline.main()
    assert "--with is for studies beside other stages" in capsys.readouterr().err


def test_stages__hand_on_what_they_find(
    headline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Study] = {}
    good = {
        "batch 256": 9.0, "batch 64": 12.0, "batch 256, context 1": 9.5,
        "batch 256, two blocks": 9.2, "layers 6": 9.9, "noise 0.1": 7.0, "lr 0.001": 7.0,
    }  # fmt: skip

    def run(_: Any, studies: dict[str, Study]) -> list[list[dict[str, Any]]]:
        made.update(studies)
        return [
            _lines({variant: good.get(variant, 1.0) for variant in study.variants})
            for study in studies.values()
        ]

    monkeypatch.setattr(headline.Stages, "run", run)
    monkeypatch.setattr(headline.Stages, "_epochs", lambda *_: 77)
    stages = headline.Stages(tmp_path, 1, None)
    settings, noise_std = stages.tuned()
    assert (settings["batch_size"], settings["context_scale"], noise_std) == (256, [1, 1], 0.1)
    assert "target_blocks" not in settings  # of the changes only the best is taken
    noise = [one.settings for one in trials(made["noise"], headline.DATA)]
    assert {(x.epochs, x.positions, x.lr, x.ema) for x in noise} == {(20, "stop", 7e-4, 0.995)}
    layers = [one.settings for one in trials(made["layers"], headline.DATA)]
    assert {(x.model, x.target_layers, x.context_scale) for x in layers} == {
        ("vit_small", 1, (1, 1)), ("vit_small", 6, (1, 1))
    }  # fmt: skip
    stages.run(stages.headline(settings, noise_std))
    stages.run(stages.beside(settings))
    runs = trials(made["headline"], headline.DATA)
    assert {run.seed for run in runs} == {20, 21, 22, 23, 24}
    one, two = (run.settings.model_dump() for run in runs[:2])
    changed = {name for name in one if one[name] != two[name]}
    assert changed == {"positions", "noise_std"}  # all else is equal on both arms
    assert (one["lr"], one["epochs"], one["noise_std"], two["noise_std"]) == (7e-4, 40, 0, 0.1)
    assert (one["ema"], one["target_layers"]) == (0.9975, 6)
    stages.run(stages.paper_noise(settings))
    again = {(run.variant, run.seed): run for run in trials(made["paper-noise"], headline.DATA)}
    assert {run.settings.noise_std for (name, _), run in again.items() if name != "sincos"} == {
        0.25
    }
    assert all(again["sincos", run.seed].key == run.key for run in runs if run.variant == "sincos")
    first, *others = [run.settings for run in trials(made["beside"], headline.DATA)]
    mae, again = (run.settings for run in trials(made["beside-mae"], headline.DATA))
    assert (others, first.seed, mae.seed, again.seed) == ([], 20, 20, 21)
    assert (mae.objective, mae.masking, mae.lr, mae.epochs) == ("mae", "random", 1e-3, 77)
    assert (first.objective, first.batch_size, first.epochs) == ("ijepa", 1024, 60)


def test_stages__go_on_from_the_committed_lines(
    headline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe that changes must not change what is asked half-way through the headline."""
    made: dict[str, Study] = {}

    def run(_: Any, studies: dict[str, Study]) -> list[list[dict[str, Any]]]:
        made.update(studies)
        return [read_results(ROOT / "results" / name) for name in studies]

    monkeypatch.setattr(headline.Stages, "run", run)
    stages = headline.Stages(ROOT / "results", 1, None)
    settings, noise_std = stages.tuned()
    stages.run(stages.headline(settings, noise_std))
    stages.run(stages.beside({**settings, "epochs": headline.EPOCHS}))
    stages.run(stages.longer(settings))
    for name, study in made.items():
        planned = {(t.variant, t.seed): t.settings.digest() for t in trials(study, headline.DATA)}
        for line in read_results(ROOT / "results" / name):
            assert planned[line["variant"], line["seed"]] == line["settings"], name
            assert line["asked"] == study.asked, name


@pytest.mark.parametrize(
    ("finer", "patch", "epochs", "ema"), [(11.9, 8, 200, 0.9995), (12.1, 4, 50, 0.998)]
)
@pytest.mark.parametrize(("halved", "lr"), [(9.9, 7e-4), (10.1, 3.5e-4)])
def test_longer__has_the_finer_grid_and_half_the_rate_where_those_are_better(
    headline: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finer: float,
    patch: int,
    epochs: int,
    ema: float,
    halved: float,
    lr: float,
) -> None:
    made: dict[str, Study] = {}

    def run(_: Any, studies: dict[str, Study]) -> list[list[dict[str, Any]]]:
        made.update(studies)
        scores = {"8×8": 10.0, "16×16": finer, "half the rate": halved}
        return [_lines(scores) for _ in studies]

    monkeypatch.setattr(headline.Stages, "run", run)
    (tmp_path / "layers").mkdir()
    known = [{**line, "settings": "", "asked": ""} for line in _lines({"layers 6": 10.0})]
    write_results(tmp_path / "layers", known)
    stages = headline.Stages(tmp_path, 1, None)
    settings = {"batch_size": 256, "lr": 7e-4, "ema": 0.995, "target_layers": 6}
    stages.run(stages.longer(settings))
    (one,) = trials(made["longer"], headline.DATA)
    found = one.settings
    assert (found.patch_size, found.epochs, found.ema) == (patch, epochs, ema)
    assert (found.positions, found.lr, found.augment, one.seed) == ("sincos", lr, "crop-flip", 20)
    stages.run(stages.long_headline(settings))
    runs = trials(made["long-headline"], headline.DATA)
    assert {run.seed for run in runs} == {30, 31, 32, 33, 34}
    arms = {run.variant: run.settings for run in runs[:2]}
    assert (arms["sincos"].positions, arms["stop"].noise_std) == ("sincos", 0.25)
    assert {(x.epochs, x.ema, x.lr, x.patch_size) for x in arms.values()} == {(100, 0.999, lr, 8)}
