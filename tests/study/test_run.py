"""Real processes, real kills, on a few scenes."""

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Command
from processes import Start, ended, environment, wait_until
from short_runs import logged

import flexpredict as fp
from flexpredict.config import settings_from
from flexpredict.run_folder import METRICS
from flexpredict.study.plan import Study, trials
from flexpredict.study.pool import Pool
from flexpredict.study.run import read_results

STUDY = {
    "title": "Small", "question": "?", "recipe": "demo", "data": "scenes:60",
    "settings": {"steps": 12, "batch_size": 8, "log_every": 4, "checkpoint_every": 4},
    "variants": {"sincos": {"positions": "sincos"}, "stop": {}}, "baseline": "sincos",
    "measures": {
        "count": {"method": "knn", "options": {"task": "scenes-count", "data": "scenes:60"}},
        "own place": {"method": "learnt", "key": "own_place"},
    },
    "gauges": ["norm_A"],
}  # fmt: skip


# That is found when it is measured: there are not so many.
UNUSABLE = {"method": "logistic", "options": {"task": "scenes-count", "labels": "999/class"}}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return path


def test_study__makes_results_tables_and_a_figure_and_skips_what_is_done(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    lines = fp.run_study(str(study), out, jobs=2, device="cpu")
    assert [(line["variant"], line["seed"]) for line in lines] == [("sincos", 0), ("stop", 0)]
    for line in lines:
        metrics = (out / f"{line['variant']}-seed0" / "metrics.jsonl").read_text().splitlines()
        assert line["found"]["norm_A"] == json.loads(metrics[-1])["norm_A"]
        kept = next((out / f"{line['variant']}-seed0" / "evaluations").glob("*.json"))
        assert line["found"]["count"] == json.loads(kept.read_text())["result"]["accuracy"]
    assert lines[0]["found"]["own place"] == 100  # no noise
    assert lines == read_results(out)
    assert {"table.md", "summary.json", "results.png", "results.svg"} <= {
        path.name for path in out.iterdir()
    }
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}
    assert fp.run_study(str(study), out, device="cpu") == lines
    assert "2 of 2 trials are done already" in capfd.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}

    # Something else is asked of the same runs: they are measured again and not trained again.
    values = STUDY | {"gauges": ["norm_mask_token"]}
    study.write_text(yaml.safe_dump(values))
    again = fp.run_study(str(study), out, device="cpu")
    assert set(again[0]["found"]) == {"count", "own place", "norm_mask_token"}
    study.write_text(yaml.safe_dump(STUDY | {"gauges": ["norm_Q"]}))
    fp.run_study(str(study), out, device="cpu")
    assert "no run has 'norm_Q': docs/health.md lists the gauges" in capfd.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}

    # Runs of another length, or of other images, are other runs.
    longer = STUDY | {"settings": STUDY["settings"] | {"steps": 16}}  # type: ignore[operator]
    study.write_text(yaml.safe_dump(longer))
    with pytest.raises(ValueError, match="holds a run with steps=12, not 16: remove it"):
        fp.run_study(str(study), out, device="cpu")
    study.write_text(yaml.safe_dump(STUDY))
    with pytest.raises(ValueError, match="holds a run with data=scenes:60, not scenes:61"):
        fp.run_study(str(study), out, data="scenes:61", device="cpu")
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}


def test_study__lines_keep_the_version_that_made_them(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write_text(yaml.safe_dump(STUDY | {"measures": {}, "variants": {"sincos": {}}}))
    lines = fp.run_study(str(study), tmp_path / "out", device="cpu")
    monkeypatch.setattr("flexpredict.study.run.VERSION", "9.9")
    assert fp.run_study(str(study), tmp_path / "out", device="cpu") == lines


def test_studies__share_runs_and_evaluations(study: Path, tmp_path: Path) -> None:
    """Two that both want the baseline: three runs, and each gets what it asked for."""
    other = tmp_path / "other.yaml"
    measures = {"numbers": STUDY["measures"]["count"]}  # type: ignore[index]
    variants = {"start": {"positions": "sincos"}, "fixed": {"positions": "fixed"}}
    values = {"variants": variants, "baseline": "start", "measures": measures, "gauges": ["l1_A"]}
    other.write_text(yaml.safe_dump(STUDY | values))
    out = tmp_path / "out"
    lines = fp.run_study([str(study), str(other)], out, jobs=2, device="cpu")
    assert [line["variant"] for line in lines] == ["sincos", "stop", "fixed", "start"]
    assert len({line["settings"] for line in lines}) == len(list((out / "runs").iterdir())) == 3
    assert set(lines[1]["found"]) == {"count", "own place", "norm_A"}
    assert set(lines[2]["found"]) == {"numbers", "l1_A"}
    assert lines[0]["found"]["count"] == lines[3]["found"]["numbers"]
    assert read_results(out / "study") + read_results(out / "other") == lines
    assert {"table.md", "results.png"} <= {path.name for path in (out / "other").iterdir()}
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")}
    assert fp.run_study([str(study), str(other)], out, device="cpu") == lines
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")}
    with pytest.raises(ValueError, match="two studies have the same name"):
        fp.run_study([str(study), str(study)], out, device="cpu")


def test_studies__of_other_images_share_nothing_and_fail_apart(study: Path, tmp_path: Path) -> None:
    wrong = {"count": UNUSABLE}
    names = {"other": STUDY | {"data": "scenes:50"}, "wrong": STUDY | {"measures": wrong}}
    paths = [tmp_path / f"{name}.yaml" for name in names]
    for path, values in zip(paths, names.values(), strict=True):
        path.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="2 of 2 trials failed"):
        fp.run_study([str(study), *map(str, paths)], out, jobs=2, device="cpu")
    one, other = read_results(out / "study"), read_results(out / "other")
    assert [line["data"] for line in one + other] == ["scenes:60"] * 2 + ["scenes:50"] * 2
    assert one[0]["found"]["norm_A"] != other[0]["found"]["norm_A"]
    assert read_results(out / "wrong") == []
    assert len(list((out / "runs").iterdir())) == 4


def test_study__variants_that_would_share_a_folder_are_refused(study: Path, tmp_path: Path) -> None:
    study.write_text(yaml.safe_dump(STUDY | {"variants": {"a/b": {}, "a-b": {"lr": 0.1}}}))
    study.write_text(study.read_text().replace("baseline: sincos\n", ""))
    with pytest.raises(ValueError, match="variants 'a-b' and 'a/b' would share a folder"):
        fp.run_study(str(study), tmp_path / "out", device="cpu")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"data": "nowhere"}, "no such folder"),
        ({"measures": {"m": {"method": "knn", "options": {"dta": "x"}}}}, "did you mean data"),
        ({"measures": {"m": {"method": "knn", "options": {"data": "nowhere"}}}}, "nowhere"),
        (
            {"measures": {"m": {"method": "boxes", "key": "iou", "options": {"data": "nowhere"}}}},
            "nowhere",
        ),
        ({"measures": {"m": {"method": "boxes", "key": "iou"}}}, "boxes need their images"),
        (
            {"measures": {"m": {"method": "knn", "key": "rigde"}}},
            "measure m: knn gives no 'rigde': choose one of accuracy, ridge",
        ),
        ({"measures": {"m": {"method": "learnt", "options": {"layers": 2}}}}, "has no option"),
        ({"measures": {"m": {"method": "knn", "options": {"draws": 0}}}}, "m: draws=0: expected a"),
        (
            {"measures": {"m": {"method": "knn", "options": {"device": "cpu"}}}},
            "the device is the whole study's",
        ),
        ({"varints": {}}, "there is no 'varints'"),
    ],
)
def test_study__mistakes_are_found_before_training(
    changed: dict[str, object], sentence: str, study: Path, tmp_path: Path
) -> None:
    study.write_text(yaml.safe_dump(STUDY | changed))
    with pytest.raises(ValueError, match=sentence):
        fp.run_study(str(study), tmp_path / "out", device="cpu")
    assert not list(tmp_path.glob("out/*/config.yaml"))


def test_study__a_broken_line_is_named(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for text in ('{"variant": "sincos", "se', "[1]", '{"a": 1}'):
        (out / "results.jsonl").write_text(text + "\n")
        with pytest.raises(ValueError, match=r"results.jsonl, line 1 is no result: take the line"):
            fp.run_study(str(study), out, device="cpu")
        assert (out / "results.jsonl").read_text() == text + "\n"


def test_sweep__of_words_and_pairs() -> None:
    values = {"augment": ["crop", "crop-flip"], "betas": [[0.9, 0.95]], "lr": [1e-3]}
    study = Study(**STUDY | {"sweep": values, "variants": {"all": {}}})
    assert [trial.variant for trial in trials(study, "scenes")] == [
        "all augment=crop betas=[0.9, 0.95] lr=0.001",
        "all augment=crop-flip betas=[0.9, 0.95] lr=0.001",
    ]


def _start(start: Start, study: Path, out: Path) -> "subprocess.Popen[bytes]":
    words = ["-m", "flexpredict", "study", study, "--out", out, "--device", "cpu"]
    more = {"COLUMNS": "80"}
    return start(*words, stderr=subprocess.PIPE, env=environment() | more)


def test_study__stopped_before_anything_was_made_goes_on(
    study: Path, tmp_path: Path, start: Start
) -> None:
    """Nothing but logs of its processes is there then, or as good as nothing."""
    out = tmp_path / "out"
    worker = _start(start, study, out)
    wait_until(lambda: list(out.glob("worker-*.log")), worker)
    worker.send_signal(signal.SIGTERM)
    ended(worker)
    assert not read_results(out)
    assert len(fp.run_study(str(study), out, jobs=2, device="cpu")) == 2


LONG = STUDY | {"settings": STUDY["settings"] | {"steps": 1200}, "measures": {}}  # type: ignore[operator]


def test_study__goes_on_after_a_signal(study: Path, tmp_path: Path, start: Start) -> None:
    study.write_text(yaml.safe_dump(LONG))
    out = tmp_path / "out"
    worker = _start(start, study, out)
    run = out / "sincos-seed0"
    wait_until(lambda: logged(run, 2), worker)
    worker.send_signal(signal.SIGTERM)
    code, errors = ended(worker)
    assert code == 75, errors
    assert "the same command goes on" in errors

    def steps() -> list[int]:
        return [json.loads(line)["step"] for line in (run / METRICS).read_text().splitlines()]

    assert steps()[-1] < 1200
    lines = fp.run_study(str(study), out, jobs=2, device="cpu")
    assert len(lines) == 2
    assert steps() == sorted(set(steps()))
    assert steps()[-1] == 1200


def _child(process: "subprocess.Popen[bytes]") -> int:
    """The one that makes trials; there may be a tracker of shared memory beside it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (found,) = (one for one in children if b"trials" in Path(f"/proc/{one}/cmdline").read_bytes())
    return int(found)


def test_study__another_process_takes_the_place_of_one_that_is_killed(
    study: Path, tmp_path: Path, start: Start
) -> None:
    study.write_text(yaml.safe_dump(LONG | {"settings": LONG["settings"] | {"steps": 300}}))
    out = tmp_path / "out"
    run = _start(start, study, out)
    wait_until(lambda: logged(out / "sincos-seed0", 2), run)
    os.kill(_child(run), signal.SIGKILL)
    code, errors = ended(run)
    assert code == 1, errors
    assert "1 of 2 trials failed" in errors
    assert "sincos-seed0: its process was killed by SIGKILL: see" in errors
    assert [line["variant"] for line in read_results(out)] == ["stop"]
    assert "Failed, and not in the table: sincos-seed0 (its" in (out / "table.md").read_text()
    assert len(fp.run_study(str(study), out, jobs=2, device="cpu")) == 2
    assert "Failed" not in (out / "table.md").read_text()


def test_study__where_processes_cannot_live_no_more_are_started(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.write_text(yaml.safe_dump(STUDY | {"seeds": [0, 1, 2]}))
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match=r"6 of 6 trials failed.*ended early, with code 1: see"):
        fp.run_study(str(study), tmp_path / "out", device="cpu")
    table = (tmp_path / "out" / "table.md").read_text()
    assert "Failed, and not in the table: sincos-seed0 (its process ended early, with" in table


def test_trials__leave_with_a_process_that_was_gone_before_they_looked(
    tmp_path: Path, start: Start
) -> None:
    """Of a study that is killed while its processes still import."""
    many = LONG["settings"] | {"steps": 100_000, "data": "scenes:60"}
    order = {
        "run": str(tmp_path / "run"), "measures": [], "gauges": [],
        "settings": settings_from(many, recipe="demo").model_dump(mode="json"),
    }  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    words = ["-m", "flexpredict", "trials", "--device", "cpu", "--parent", str(gone.pid)]
    worker = start(*words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    _, errors = worker.communicate(json.dumps(order).encode() + b"\n", timeout=120)
    assert worker.returncode == 75, errors
    assert b"flexpredict: stopped" in errors


def test_study__its_processes_save_and_leave_when_it_is_killed(
    study: Path, tmp_path: Path, start: Start
) -> None:
    """Else they would train on, and the same command would find their folders taken."""
    study.write_text(yaml.safe_dump(LONG | {"settings": LONG["settings"] | {"steps": 100_000}}))
    out = tmp_path / "out"
    run = _start(start, study, out)
    wait_until(lambda: logged(out / "sincos-seed0", 2), run)
    child = Path(f"/proc/{_child(run)}")
    run.kill()
    ended(run)
    wait_until(lambda: not child.exists() or " Z " in (child / "stat").read_text())
    assert "stopped at step" in (out / "worker-0.log").read_text()


def test_study__the_table_has_the_seeds_of_the_study_and_those_asked_for(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study.write_text(yaml.safe_dump(STUDY | {"measures": {}, "variants": {"sincos": {}}}))
    out = tmp_path / "out"

    def seeds(asked: list[int] | None) -> list[int]:
        lines = fp.run_study(str(study), out, seeds=asked, device="cpu")
        found = json.loads((out / "summary.json").read_text())["sincos"]["norm_A"]["seeds"]
        assert found == len(lines)
        return [line["seed"] for line in lines]

    assert seeds(None) == [0]
    assert seeds([1]) == [1, 0]
    assert seeds(None) == [0]
    said = f"1 lines of {out / 'results.jsonl'} are of other seeds or settings, in no table"
    assert said in capfd.readouterr().err


def test_study__what_a_run_does_not_have_is_left_out_of_its_line(
    study: Path, tmp_path: Path
) -> None:
    """Noise in coordinates is not that of one matrix, and points nowhere in ψ's space."""
    values = {"variants": {"stop": {}, "coordinates": {"positions": "coordinates"}}}
    study.write_text(yaml.safe_dump(STUDY | values | {"baseline": "stop"}))
    lines = fp.run_study(str(study), tmp_path / "out", device="cpu")
    found = {line["variant"]: line["found"] for line in lines}
    assert found["stop"]["own place"] is not None
    assert found["coordinates"]["own place"] is None
    assert found["coordinates"]["count"] is not None


def test_study__one_failure_does_not_stop_the_others(study: Path, tmp_path: Path) -> None:
    values = STUDY | {"variants": {"wild": {"lr": 1e9, "lr_start": 1e9}, "stop": {}}}
    study.write_text(yaml.safe_dump(values | {"baseline": "stop"}))
    with pytest.raises(RuntimeError, match=r"1 of 2 trials failed.*wild-seed0: the (loss|weights)"):
        fp.run_study(str(study), tmp_path / "out", device="cpu")
    assert [line["variant"] for line in read_results(tmp_path / "out")] == ["stop"]


def test_study__lines_of_other_settings_are_not_shown(study: Path, tmp_path: Path) -> None:
    """Where what has changed cannot be made, the table does not say what was found before."""
    values = STUDY | {"measures": {}}
    study.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    fp.run_study(str(study), out, device="cpu")
    shutil.rmtree(out / "stop-seed0")
    wild = {"sincos": {"positions": "sincos"}, "stop": {"lr": 1e9, "lr_start": 1e9}}
    study.write_text(yaml.safe_dump(values | {"variants": wild}))
    with pytest.raises(RuntimeError, match="1 of 2 trials failed"):
        fp.run_study(str(study), out, device="cpu")
    assert set(json.loads((out / "summary.json").read_text())) == {"sincos"}
    assert [line["variant"] for line in read_results(out)] == ["sincos", "stop"]  # nothing is lost


def test_study__says_which_runs_are_ill(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values: dict[str, Any] = STUDY | {"measures": {}, "baseline": None}
    values["settings"] = values["settings"] | {"gauge_every": 2}
    values["variants"] = {"no average": {"ema": 0.0, "ema_final": 0.0}}
    study.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    (line,) = fp.run_study(str(study), out, device="cpu")
    assert line["verdict"] == "collapsing"
    said = "Not all runs are healthy: no average, seed 0, is collapsing.\n"
    assert (out / "table.md").read_text().endswith(f"|\n\n{said}")
    assert f"no_average-seed0 is collapsing: flexpredict doctor {out}" in capfd.readouterr().err
    assert fp.run_study(str(study), out, device="cpu") == [line]


def test_study__a_number_that_no_run_has_is_named(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    early = {"method": "logistic", "key": "after_100_iterations"}  # of another protocol
    early |= {"options": {"task": "scenes-count", "data": "scenes:60"}}  # type: ignore[dict-item]
    study.write_text(yaml.safe_dump(STUDY | {"measures": {"early": early}}))
    out = tmp_path / "out"
    assert len(fp.run_study(str(study), out, device="cpu")) == 2
    assert f"no run has 'early': {out}/worker-*.log have what" in capfd.readouterr().err
    assert (
        "logistic gives no 'after_100_iterations' of it, but accuracy"
        in (out / "worker-0.log").read_text()
    )


def test_study__a_measure_that_fails_costs_neither_the_run_nor_the_others(
    study: Path, tmp_path: Path
) -> None:
    study.write_text(yaml.safe_dump(STUDY | {"measures": {"wrong": UNUSABLE, **STUDY["measures"]}}))  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match="of 2 trials failed"):
        fp.run_study(str(study), tmp_path / "out", device="cpu")
    assert len(list(tmp_path.glob("out/*/encoder.safetensors"))) == 2


def test_study__a_number_that_is_none_fails_its_trial_and_no_other(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON holds no NaN."""
    real = Pool.work

    def spoilt(*given: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder, answer in real(*given):
            yield (
                folder,
                answer | ({"measures": [math.nan, 1.0]} if "sincos" in str(folder) else {}),
            )

    monkeypatch.setattr(Pool, "work", spoilt)
    with pytest.raises(RuntimeError, match=r"1 of 2 trials failed.*sincos-seed0: count is nan"):
        fp.run_study(str(study), tmp_path / "out", device="cpu")
    assert [line["variant"] for line in read_results(tmp_path / "out")] == ["stop"]


def test_study__only_one_process_works_in_a_folder(study: Path, tmp_path: Path) -> None:
    """Each would write the lines that it knows of, and lose the other's."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.jsonl").write_text("")
    hold = "import sys, time; from pathlib import Path; from flexpredict.files import alone_in\n"
    hold += "with alone_in(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match="another process works on the study in"):
            fp.run_study(str(study), out, device="cpu")
        other.communicate()


def test_trials__what_a_library_prints_is_no_answer(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chatty(order: dict[str, Any], device: str | None) -> dict[str, Any]:
        print("a newer version of this library is there")
        return {"order": order, "device": device}

    monkeypatch.setattr("flexpredict.cli.studying.make_trial", chatty)
    monkeypatch.setattr("sys.stdin", io.StringIO('{"run": "a"}\n{"run": "b"}\n'))
    code, out, err = command("trials")
    assert code == 0
    assert [json.loads(line)["order"]["run"] for line in out.splitlines()] == ["a", "b"]
    assert "newer version" in err


def test_study__a_folder_of_something_else_is_left_alone(study: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds no study: choose another --out"):
        fp.run_study(str(study), tmp_path, device="cpu")
