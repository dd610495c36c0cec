"""Verdicts on lines made by hand: each ailment is told by its own signs, and only by them."""

from pathlib import Path
from typing import Any

import pytest

from flexpredict.config import Settings, settings_from
from flexpredict.health.diagnosis import (
    RULES,
    diagnose,
    measure,
    progress_of,
    steps_of,
    thresholds,
)
from flexpredict.run_folder import METRICS, read_metrics

STEPS = 100
SETTINGS = settings_from({"steps": STEPS})


def _lines(count: int = 10, **ends: float | None) -> list[dict[str, Any]]:
    """A healthy run, in which each of `ends` goes from its usual start to another end."""
    usual = {
        "loss": (0.45, 0.2), "fixed_loss": (0.45, 0.2), "norm_A": (1.3, 1.7),
        "norm_gamma": (8, 8.1), "rankme_target": (7.0, 6.0), "spread_target": (0.5, 0.6),
        "noise_over_signal": (0.3, 0.1), "noise_over_position": (0.06, 0.07),
        "data_wait": (0.1, 0.1), "encoder_distance": (0.1, 0.02),
    }  # fmt: skip
    lines = []
    for place in range(count):
        share = place / (count - 1)
        line: dict[str, Any] = {"step": 1 + round(share * (STEPS - 1)), "epoch": share}
        for name, (first, last) in usual.items():
            end = ends.get(name, last)
            # The end is reached a third before it: what counts is the median of the last lines.
            line[name] = None if end is None else first + (end - first) * min(1, 1.5 * share)
        lines.append(line)
    return lines


def test_healthy__at_the_end_and_on_the_way() -> None:
    found = diagnose(SETTINGS, _lines())
    assert (found.verdict, found.ailing, found.evidence, found.unjudged) == (
        "healthy",
        False,
        [],
        [],
    )
    half = diagnose(SETTINGS, _lines()[:6])
    assert half.sentence == "healthy so far, at 56% of the run"


@pytest.mark.parametrize(
    ("verdict", "ends"),
    [
        ("exploding", {"norm_A": 100.0}),
        ("collapsed", {"fixed_loss": 0.003}),
        ("collapsed", {"spread_target": 0.02}),
        ("collapsing", {"rankme_target": 2.0}),
        ("drowned", {"noise_over_signal": 5.0}),
        ("escaping", {"noise_over_position": 0.01, "norm_A": 0.2, "norm_gamma": 12}),
        ("degenerate", {"noise_over_position": 0.01, "norm_A": 0.2, "norm_gamma": 8.4}),
        ("degenerate", {"noise_over_position": 0.01}),
        ("starved", {"data_wait": 0.95}),
        ("stalled", {"rankme_target": 7.0, "spread_target": 0.5}),
        ("under-trained", {"encoder_distance": 0.1}),
    ],
)
def test_ailments__are_told_with_evidence_and_remedy(verdict: str, ends: dict[str, float]) -> None:
    found = diagnose(SETTINGS, _lines(**ends))
    assert found.verdict == verdict
    assert found.ailing
    assert found.sentence.startswith(verdict)
    assert found.evidence
    assert all("(limit " in words for words in found.evidence)
    assert found.remedy.endswith(".")


def test_collapsed__of_mae_is_no_matter_of_an_average() -> None:
    mae = settings_from({"objective": "mae", "positions": "sincos", "steps": STEPS})
    lines = _lines(fixed_loss=0.003, encoder_distance=None)
    assert diagnose(SETTINGS, lines).remedy.startswith("Raise ema")
    assert (found := diagnose(mae, lines)).verdict == "collapsed"
    assert "ema" not in found.remedy


@pytest.mark.parametrize(
    ("verdict", "wrong"), [("starved", {"data_wait": 0.95}), ("exploding", {"norm_A": 99.0})]
)
def test_lines_without_gauges__tell_what_they_can(verdict: str, wrong: dict[str, float]) -> None:
    """Gauges are rare; what is on every line need not wait for five of them."""
    first, *others = _lines()
    plain = [{name: line[name] for name in ("step", "epoch", "loss")} for line in others]
    well = [line | {"data_wait": 0.1, "norm_A": 1.3} for line in plain]
    assert diagnose(SETTINGS, [first, *well]).verdict == "unknown"
    found = diagnose(SETTINGS, [first, *(line | wrong for line in well)])
    assert found.verdict == verdict
    assert diagnose(SETTINGS, [first, *(line | wrong for line in well[:3])]).verdict == "unknown"


def test_escaping__is_of_a_tied_matrix_alone() -> None:
    lines = _lines(noise_over_position=0.01, norm_gamma=12)
    assert diagnose(SETTINGS, lines).verdict == "escaping"
    found = diagnose(settings_from({"steps": STEPS, "tied": False}), lines)
    assert (found.verdict, found.unjudged) == ("degenerate", [])


def test_collapsing__one_encoder_in_place_of_two() -> None:
    lines = [line | {"encoder_distance": 0.0} for line in _lines()]
    found = diagnose(SETTINGS, lines)
    assert (found.verdict, found.remedy) == ("collapsing", "Raise ema.")


def test_exploding__a_loss_that_is_not_finite() -> None:
    lines = [*_lines(3), {"step": 50, "epoch": 0.5, "loss": None}]
    found = diagnose(SETTINGS, lines)
    assert found.verdict == "exploding"
    assert found.evidence == ["the loss is no longer a finite number"]


def test_stalled__a_probe_that_moves_is_a_sign_of_life() -> None:
    lines = _lines(rankme_target=7.0, spread_target=0.5)
    for place, line in enumerate(lines):
        line["knn"] = 30.0 + place
    assert diagnose(SETTINGS, lines).verdict == "healthy"


def test_under_trained__only_once_the_run_has_ended() -> None:
    lines = _lines(encoder_distance=0.1)
    assert diagnose(SETTINGS, lines[:-1]).verdict == "healthy"
    assert "lag" not in measure(SETTINGS, lines[:-1])


def test_progress__of_runs_that_are_told_in_epochs() -> None:
    settings = settings_from({"epochs": 2})
    assert diagnose(settings, _lines()).measures["progress"] == 0.5


def test_old_runs__say_what_they_cannot_tell() -> None:
    old = [
        {name: line[name] for name in ("step", "epoch", "loss", "norm_A", "norm_gamma")}
        for line in _lines()
    ]
    found = diagnose(SETTINGS, old)
    assert found.verdict == "unknown"
    assert not found.ailing
    assert {"collapsing", "drowned", "starved"} <= set(found.unjudged)
    assert "exploding" not in found.unjudged
    assert diagnose(SETTINGS, [line | {"norm_A": 1.3 * 20**place} for place, line in
                               enumerate(old)]).verdict == "exploding"  # fmt: skip


def test_few_lines__are_not_judged() -> None:
    assert diagnose(SETTINGS, _lines(spread_target=0.001)[:4]).verdict == "unknown"
    assert diagnose(SETTINGS, []).verdict == "unknown"
    begun, ended = _lines()[:4], _lines(4)
    for lines, remedy in ((begun, "Wait until it is gauged"), (ended, "Set gauge_every low")):
        found = diagnose(SETTINGS, lines)
        assert found.evidence == ["4 of its lines have gauges, and it takes 5"]
        assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    "settings", [Settings(positions="sincos"), Settings(noise_std=0.0), Settings(objective="mae")]
)
def test_unjudged__what_cannot_befall_a_run_is_not_missed(settings: Settings) -> None:
    missed = set(diagnose(settings, []).unjudged)
    if settings.objective != "mae":
        assert not {"drowned", "degenerate", "escaping"} & missed
    assert "collapsed" in missed


def test_mae__has_no_encoder_that_could_catch_up_and_says_so() -> None:
    mae = settings_from({"objective": "mae", "positions": "sincos", "steps": STEPS})
    found = diagnose(mae, _lines(encoder_distance=None))
    assert found.verdict == "healthy"
    assert found.unjudged == ["under-trained"]
    assert "do not tell whether it is under-trained" in " ".join(found.sentences)


def test_null_gauges__are_passed_over() -> None:
    lines = _lines()
    for line in lines[3:5]:
        line["rankme_target"] = line["noise_over_signal"] = None
    lines[5]["norm_A"] = "n/a"  # of another program's
    assert diagnose(SETTINGS, lines).verdict == "healthy"
    in_epochs = SETTINGS.model_copy(update={"steps": None, "epochs": 2})
    bare = [{"step": step, "loss": 0.5} for step in range(1, 30)]
    assert diagnose(in_epochs, bare).verdict


def test_thresholds__every_condition_has_one() -> None:
    assert set(thresholds()) == {c.measure for rule in RULES for c in rule.conditions}


def test_docs__have_the_thresholds_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    said = {row[1].strip(" `"): row[2].strip() for row in rows}
    for name, value in thresholds().items():
        if name not in ("broken", "apart"):  # these ask yes or no
            assert said[name] == f"{value:g}"


def test_progress__of_a_run_in_epochs_ends_where_its_steps_end() -> None:
    """Half an epoch of 7 steps is 4 of them, or 0.571429 epochs; 1.5 epochs are 10."""
    for epochs, step in ((0.5, 4), (1.5, 10), (3, 21)):
        settings = settings_from({"epochs": epochs})
        line = {"step": step, "epoch": round(step / 7, 6)}
        assert steps_of(settings, line) == step
        assert progress_of(settings, line) == 1
        assert progress_of(settings, {"step": 1, "epoch": round(1 / 7, 6)}) == 1 / step
    assert steps_of(settings, {"step": 1, "epoch": 0.0}) is None


def test_read_metrics__only_whole_lines_count(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(
        b'{"step": 1, "loss": 1}\n[1, 2]\n{"step": 2}\n\xff\xfe\n{"step": 3, "loss": 2}\n{"st\n'
        b'{"step": "x", "loss": 1}\n{"step": 4, "loss": "abc"}\n{"step": 5, "loss": null}'
    )
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 1}, {"step": 3, "loss": 2}, {"step": 5, "loss": None}
    ]  # fmt: skip


def test_annealed__noise_that_is_meant_to_end_is_not_lost() -> None:
    fading = _lines(noise_over_position=0.0001)
    assert diagnose(SETTINGS, fading).verdict == "degenerate"
    found = diagnose(settings_from({"steps": STEPS, "positions": "annealed"}), fading)
    assert (found.verdict, found.unjudged) == ("healthy", [])
