"""The queue of what a GPU is still to measure, with small commands in the place of long ones."""

import importlib
import json
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import flexpredict as fp
from flexpredict.files import alone_in
from flexpredict.study.plan import read_study, study_names, trials

FOLDER = Path(__file__).parents[1] / "benchmarks"
SAVES = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready", flush=True)
time.sleep(60)
"""
DEAF = """import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu_queue")


def work(queue: ModuleType, folder: Path, name: str, seconds: float, program: str) -> object:
    path = folder / f"{name}.py"
    path.write_text(program)
    return queue.Work(name, seconds, str(path))


def test_queue__goes_on_where_it_ended(queue: ModuleType, tmp_path: Path) -> None:
    plan = [
        [work(queue, tmp_path, "first", 1, "print('one')")],
        [
            work(queue, tmp_path, "broken", 1, "raise SystemExit(3)"),
            work(queue, tmp_path, "beside", 1, "print('two')"),
        ],
        [work(queue, tmp_path, "long", 1000, "print('three')")],
    ]
    queue.run_queue(plan, tmp_path, seconds=100)
    said = (tmp_path / "said.txt").read_text()
    assert "broken: failed (3)" in said
    assert "too few for long" in said
    assert sorted((tmp_path / "done").read_text().split()) == ["beside", "first"]

    plan[1][0] = work(queue, tmp_path, "broken", 1, "print('mended')")
    queue.run_queue(plan, tmp_path, seconds=2000)
    assert set((tmp_path / "done").read_text().split()) == {"beside", "broken", "first", "long"}
    assert (tmp_path / "first.log").read_text() == "one\n"  # once


def test_queue__time_is_up(
    queue: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is when both listen; and time to clear away when one of them has saved."""

    def said_by(*names: str) -> bool:
        return all(
            (tmp_path / name).exists() and (tmp_path / name).stat().st_size for name in names
        )

    def now() -> float:
        return 7.0 * said_by("saves.log", "deaf.log") + 5.0 * said_by("said.txt")

    monkeypatch.setattr(queue, "SAVING", 10.0)
    monkeypatch.setattr(queue, "CLEARING", 5.0)
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    wave = [work(queue, tmp_path, "saves", 0, SAVES), work(queue, tmp_path, "deaf", 0, DEAF)]
    queue.run_queue([wave], tmp_path, seconds=15)  # told to save at 5, killed at 10
    said = (tmp_path / "said.txt").read_text()
    assert "saves: to go on" in said
    assert "deaf: failed (-9)" in said
    assert not (tmp_path / "done").exists()


def test_queue__is_watched(
    queue: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(queue, "WATCHED", 0.1)
    monkeypatch.setattr(queue, "QUEUE", [[work(queue, tmp_path, "first", 1, "print('one')")]])
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "work"), "--watch", "60"])
    with pytest.raises(SystemExit, match="another machine"):
        queue.main()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "work"), "--seconds", "60"])
    with alone_in(tmp_path / "work"):  # somebody works
        assert not queue.watch(tmp_path / "work", 0.3)
        with pytest.raises(SystemExit, match="somebody works in"):
            queue.main()
    assert not queue.watch(tmp_path / "work", 0.0)  # one look is not enough to say that it ended
    queue.main()
    monkeypatch.setattr(
        sys, "argv", ["", str(tmp_path / "work"), "--watch", "60", "--home", str(tmp_path)]
    )
    queue.main()
    said = capsys.readouterr().out
    assert "first: done after" in said
    assert "it has ended" in said
    with tarfile.open(tmp_path / "kept.tar.gz") as tar:
        assert {"first.log", "done", "said.txt"} < set(tar.getnames())


def test_queue__what_is_kept(queue: ModuleType, tmp_path: Path) -> None:
    plan = read_study("seeds-t4")
    trial = trials(plan, str(plan.data))[3]
    small = {"model": "vit_nano", "data": "scenes:8", "batch_size": 4, "steps": 12, "log_every": 1}
    for folder in (f"runs/{trial.key}", "beside/mae-seed20"):
        fp.pretrain(out=tmp_path / "results" / folder, recipe="demo", **small)
    (tmp_path / "results/beside/results.jsonl").write_text("{}\n")
    (tmp_path / "some.log").write_text("said\n")
    queue.keep(tmp_path, tmp_path)
    with tarfile.open(tmp_path / "kept.tar.gz") as tar:
        names = set(tar.getnames())
        lines = tar.extractfile("results/beside/runs/mae-seed20/metrics.jsonl")
        assert lines is not None
        steps = [json.loads(line)["step"] for line in lines]
    assert names == {
        "some.log", "results/beside/results.jsonl",
        *(f"results/{run}/{name}" for run in ("seeds-t4/runs/stop-seed3", "beside/runs/mae-seed20")
          for name in ("config.yaml", "metrics.jsonl")),
    }  # fmt: skip
    assert steps == [1, 5, 10, 12]  # those with gauges


def test_queue__names_are_unique_and_studies_are_there(queue: ModuleType) -> None:
    works = [one for wave in queue.QUEUE for one in wave]
    assert len({one.name for one in works}) == len(works)
    asked = [one.command.partition("study ")[2].partition(" --out")[0].split() for one in works]
    assert {"figure3", "figure4-scenes"} < {name for some in asked for name in some}
    assert {name for some in asked for name in some} < set(study_names())
