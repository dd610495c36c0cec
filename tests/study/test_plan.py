from pathlib import Path

import pytest
import yaml

from flexpredict.study.plan import read_study, study_names, trials

SMALL = {
    "title": "Small", "question": "?", "recipe": "demo", "data": "scenes:40",
    "variants": {"sincos": {"positions": "sincos", "noise_std": 0}, "stop": {}},
    "sweep": {"noise_std": [0.1, 0.5]}, "seeds": [3, 1], "baseline": "sincos",
}  # fmt: skip


def _written(folder: Path, **changes: object) -> str:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(SMALL | changes))
    return str(path)


def test_trials__are_variants_by_sweep_by_seeds_and_pairs_come_together(tmp_path: Path) -> None:
    study = read_study(_written(tmp_path))
    found = trials(study, "scenes:40")
    names = ["sincos", "stop noise_std=0.1", "stop noise_std=0.5"]
    assert [(t.variant, t.seed) for t in found] == [(n, s) for s in (3, 1) for n in names]
    assert found[2].settings.noise_std == 0.5
    assert {t.settings.seed for t in found} == {1, 3}
    assert [t.seed for t in trials(study, "scenes:40", [7])] == [7, 7, 7]


def test_trials__values_that_are_near_each_other_have_names_of_their_own(tmp_path: Path) -> None:
    study = read_study(_written(tmp_path, sweep={"ema": [0.9999991, 0.9999992, 1]}, baseline=None))
    names = [trial.variant for trial in trials(study, "scenes:40", [0])]
    assert names[:3] == ["sincos ema=0.9999991", "sincos ema=0.9999992", "sincos ema=1"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"baseline": "none"}, "baseline 'none' is no variant: choose one of sincos"),
        ({"baseline": {"stop noise_std=0.1": "none"}}, "baseline 'none' is no variant"),
        ({"baseline": {"stop": "sincos"}}, "baseline 'stop' is no variant"),
        ({"sweep": {"noise_std": [0.1, 0.1]}}, r"has 'stop noise_std=0\.1' twice"),
        ({"variants": {"stop": {"data": "other/"}}}, "stop: data is the same for all variants"),
        ({"settings": {"seed": 3}}, "settings: seed is the same for all variants"),
        ({"variants": {}}, "variants"),
        ({"variants": {"a": {"nois_std": 1}}}, "variant a .*nois_std"),
        ({"measures": {"x": {"method": "guess"}}}, "measures"),
        ({"colour": "red"}, "colour"),
        ({"recipe": "smal"}, "there is no recipe 'smal'"),
    ],
)
def test_study__what_does_not_fit_is_one_sentence(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read_study(_written(tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_study__an_unknown_name_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no study 'tabel6': did you mean table6\?"):
        read_study("tabel6")
    with pytest.raises(ValueError, match=r"there is no study 'x': choose one of .*table6"):
        read_study("x")
    with pytest.raises(ValueError, match="no such file"):
        read_study(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies__can_be_read(name: str) -> None:
    study = read_study(name)
    assert len(trials(study, "images")) >= 2
    assert study.baseline is not None or len(study.variants) == 1
    assert study.measures
