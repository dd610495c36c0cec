"""`flexpredict doctor` as people and scripts use it."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import Command

FAST = [
    "--set=model=vit_nano", "--set=patch_size=4", "--set=image_size=32", "--set=batch_size=16",
    "--set=steps=12", "--set=workers=0", "--set=gauge_every=2",
]  # fmt: skip


@pytest.fixture
def run(photos: Path, tmp_path: Path, command: Command) -> Path:
    out = tmp_path / "run"
    assert command("pretrain", photos, "--out", out, *FAST)[0] == 0
    return out


def test_doctor__in_words_and_as_json(run: Path, command: Command) -> None:
    code, text, _ = command("doctor", run)
    assert code == 0
    assert text.startswith(f"{run}: ")
    assert "rankme_target" in text
    code, text, _ = command("doctor", run, "--json")
    assert code == 0
    found = json.loads(text)
    assert {"run", "verdict", "ailing", "sentence", "evidence", "remedy", "unjudged", "measures",
            "gauges", "healthy"} == set(found)  # fmt: skip
    assert found["measures"]["progress"] == 1
    assert found["gauges"]["rankme_target"]["now"] > 1


def test_doctor__names_the_ailment_and_the_remedy(run: Path, command: Command) -> None:
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[3:]:
        line["noise_over_signal"] = 9.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 13, "lo')
    code, text, _ = command("doctor", run)
    assert code == 0
    assert "drowned: the noise is louder than what the context says." in text
    assert "the noise is 9 times the signal A s" in text
    assert "What usually helps: Lower noise_std." in text


def test_doctor__an_old_run(run: Path, command: Command) -> None:
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    old = [{k: line[k] for k in ("step", "epoch", "loss", "norm_A")} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    code, text, _ = command("doctor", run)
    assert code == 0
    assert "unknown: nothing is seen to be wrong" in text
    assert "0 of its lines have gauges, and it takes 5" in text
    assert "No healthy runs are known" in text
    assert "healthy runs by now" not in text


def test_doctor__of_several_runs_says_a_sentence_each(run: Path, command: Command) -> None:
    other = run.with_name("other")
    shutil.copytree(run, other)
    code, text, _ = command("doctor", run, other)
    assert code == 0
    assert [line.partition(": ")[0] for line in text.splitlines() if line.startswith("/")] == [
        str(run), str(other)
    ]  # fmt: skip
    assert "rankme_target" not in text
    code, text, _ = command("doctor", run, other, "--json")
    one, same = json.loads(text)["runs"]
    assert one | {"run": str(other)} == same
    assert one == json.loads(command("doctor", run, "--json")[1])


def test_doctor__one_that_cannot_be_judged_hides_no_other(
    run: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "none").mkdir()
    code, text, err = command("doctor", tmp_path / "none", run)
    assert code == 2
    assert "none is no run" in err
    assert text.startswith(f"{run}: ")
    code, text, _ = command("doctor", tmp_path / "none", run, "--json")
    assert code == 2
    assert [set(one) >= {"verdict"} for one in json.loads(text)["runs"]] == [True, False]


def test_doctor__wrong_input_is_one_sentence(tmp_path: Path, run: Path, command: Command) -> None:
    (run / "metrics.jsonl").write_text("")
    cases = {"is no run": tmp_path, "has logged nothing yet": run}
    for sentence, path in cases.items():
        code, _, err = command("doctor", path)
        assert code == 2
        assert sentence in err
        assert err.count("\n") == 1
