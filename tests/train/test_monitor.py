"""What a run tells: warnings once, trackers, null where a number is not finite."""

import json
import math
import sys
import threading
import types
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Command

import flexpredict as fp
from flexpredict.config import settings_from
from flexpredict.progress import Tally
from flexpredict.train.monitor import Monitor, Waits
from flexpredict.train.track import scalars

SMALL: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "steps": 4, "log_every": 1, "gauge_every": 2, "checkpoint_every": 2, "workers": 0,
}  # fmt: skip


def _line(step: int, rank: float) -> dict[str, Any]:
    return {
        "step": step, "epoch": 0.0, "loss": 0.3, "images_per_second": 1.0, "norm_A": 1.0,
        "rankme_target": rank, "spread_target": 0.5 + step / 100, "fixed_loss": 0.3,
    }  # fmt: skip


def test_warnings__once_when_a_run_falls_ill_and_again_after_it_was_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_from({"steps": 100})
    ranks = [8.0] * 5 + [1.0] * 5 + [8.0] * 5 + [1.0] * 5
    with Monitor(tmp_path, settings, first=0, total=100) as monitor:
        for step, rank in enumerate(ranks, start=1):
            monitor.log(_line(step, rank))
    warnings = [x for x in capsys.readouterr().err.splitlines() if x.startswith("warning:")]
    assert len(warnings) == 2
    assert "collapsing: the features lose their dimensions" in warnings[0]
    assert "is at 0.125 of its best" in warnings[0]
    # At the edge of a limit, to and fro, it is not told at every turn.
    with Monitor(tmp_path, settings, first=0, total=100) as monitor:
        for step, rank in enumerate([8.0] * 5 + [1.0, 1.0, 8.0, 8.0] * 3 + [1.0] * 3, start=1):
            monitor.log(_line(step, rank))
    assert capsys.readouterr().err.count("warning:") == 1
    # A run that goes on is not told again what it was told before.
    with Monitor(tmp_path, settings, first=20, total=100) as monitor:
        monitor.log(_line(21, 1.0))
    assert "warning:" not in capsys.readouterr().err


def _coming(rank: float) -> Future[dict[str, Any]]:
    """What a thread will find."""
    pending: Future[dict[str, Any]] = Future()
    threading.Timer(0.2, pending.set_result, [{"rankme_target": rank}]).start()
    return pending


def test_lines__what_is_still_to_come_is_written_in_its_order(tmp_path: Path) -> None:
    """When it has come, before the next line, by flush, and at the end; never twice."""

    def steps() -> list[tuple[int, float | None]]:
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        return [(line["step"], line.get("rankme_target")) for line in map(json.loads, lines)]

    plain = {"epoch": 0.0, "loss": 0.3, "images_per_second": 1.0}
    with Monitor(tmp_path, settings_from({"steps": 100}), first=0, total=100) as monitor:
        monitor.log({"step": 1, **plain}, _coming(3.0))
        assert steps() == []
        monitor.log({"step": 2, **plain})
        assert steps() == [(1, 3.0), (2, None)]
        monitor.log({"step": 3, **plain}, _coming(4.0))
        monitor.flush()
        assert steps() == [(1, 3.0), (2, None), (3, 4.0)]
        monitor.log({"step": 4, **plain}, coming := _coming(5.0))
        monitor.advance(5)
        assert len(steps()) == 3
        coming.result()
        monitor.advance(6)
        assert steps()[3:] == [(4, 5.0)]
        monitor.log({"step": 7, **plain}, _coming(6.0))
    assert [step for step, _ in steps()] == [1, 2, 3, 4, 7]


def test_lines__what_fails_on_the_way_does_not_hide_what_went_wrong(tmp_path: Path) -> None:
    settings = settings_from({"steps": 100})
    line = {"step": 1, "epoch": 0.0, "loss": 0.3, "images_per_second": 1.0}
    lost: Future[dict[str, Any]] = Future()
    lost.set_exception(RuntimeError("device lost"))

    def failing(error: Exception | None) -> None:
        with Monitor(tmp_path, settings, first=0, total=100) as monitor:
            monitor.log(line, lost)
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="cannot be used"):
        failing(ValueError("images cannot be used"))
    with pytest.raises(RuntimeError, match="device lost"):
        failing(None)


def test_warning__of_what_every_line_tells_waits_for_no_gauges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"epoch": 0.0, "loss": 0.3, "images_per_second": 1.0, "data_wait": 0.97}
    with Monitor(tmp_path, settings_from({"steps": 100}), first=0, total=100) as monitor:
        for step in range(1, 5):
            monitor.log({"step": step, **plain})
        assert "warning:" not in capsys.readouterr().err
        for step in range(5, 9):
            monitor.log({"step": step, **plain})
    assert capsys.readouterr().err.count("warning: starved: training waits for images.") == 1


def test_plain_lines__few_seconds_few_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("flexpredict.progress.time", SimpleNamespace(monotonic=lambda: now))
    tally = Tally("images")
    for done in range(1, 101):
        now += 0.3
        tally(done, 100)
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in said] == [
        f"images: {done}/100" for done in (1, 18, 35, 52, 69, 86, 100)
    ]
    assert said[1] == "images: 18/100, 25 s left"


def test_lines__what_is_not_finite_is_null(tmp_path: Path) -> None:
    with Monitor(tmp_path, settings_from({}), first=0, total=2) as monitor:
        odd = {"loss": math.nan, "a": math.inf, "b": [1.0, math.nan], "images_per_second": 2}
        monitor.log({"step": 1, **odd})
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    null = {"loss": None, "a": None, "b": [1.0, None], "images_per_second": 2}
    assert line == {"step": 1, **null}


def test_loss__that_is_not_finite_is_logged_for_the_doctor(
    pictures: np.ndarray, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        fp.pretrain(pictures, run, **SMALL | {"lr": 1e30, "lr_start": 1e30})
    assert fp.doctor(run).diagnosis.verdict == "exploding"


def test_waits__are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 5.0, 7.0, 8.0, 8.5])
    clock = SimpleNamespace(monotonic=lambda: next(now))  # others have the time that it is
    monkeypatch.setattr("flexpredict.train.monitor.time", clock)
    waits = Waits()
    assert list(zip(range(2), waits.over("ab"), strict=True)) == [(0, "a"), (1, "b")]
    assert waits.lap() == 1 + 2 + 0.5
    assert waits.lap() == 0


def test_tensorboard__holds_what_was_logged(photos: Path, tmp_path: Path, command: Command) -> None:
    """Written by the command line, interrupted in between, read back."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    settings = [f"--set={key}={value}" for key, value in SMALL.items()]
    given = ["pretrain", photos, "--out", run, "--track", "tensorboard", *settings]
    assert command(*given)[0] == 0
    assert command(*given, "--resume", "--set=steps=6")[0] == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("loss")}
    assert found == pytest.approx({line["step"]: line["loss"] for line in lines}, rel=1e-6)
    gauged = {line["step"]: line["loss_by_row"][3] for line in lines if "loss_by_row" in line}
    found = {event.step: event.value for event in events.Scalars("loss_by_row/3")}
    assert found == pytest.approx(gauged, rel=1e-6)


def test_wandb__is_told_every_line(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a stand-in: the package is not among those that tests need."""
    told: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            told.append((step, values))

        def finish(self) -> None:
            told.append("finished")

    def init(**given: Any) -> Run:
        told.append(given)
        return Run()

    module = types.SimpleNamespace(init=init, errors=types.SimpleNamespace(Error=RuntimeError))
    monkeypatch.setitem(sys.modules, "wandb", module)
    fp.pretrain(pictures, tmp_path / "run", track="wandb", **SMALL)
    assert told[0]["project"] == "flexpredict"
    assert told[0]["config"]["model"] == "vit_nano"
    assert [step for step, _ in told[1:-1]] == [1, 2, 3, 4]
    assert told[1][1]["loss_by_block/0"] > 0
    assert told[-1] == "finished"


def test_track__what_cannot_be_used_is_refused_before_the_run(
    photos: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("api_key not configured (no-tty).\nCall wandb.login(…)")

    out = tmp_path / "run"
    given = ["pretrain", photos, "--out", out, *(f"--set={k}={v}" for k, v in SMALL.items())]
    monkeypatch.setitem(sys.modules, "wandb", None)
    cases = {"mlflow": "--track knows tensorboard and wandb, not 'mlflow'",
             "wandb": "pip install 'flexpredict[wandb]'"}  # fmt: skip
    for name, sentence in cases.items():
        code, _, err = command(*given, "--track", name)
        assert code == 2
        assert sentence in err
        assert err.count("\n") == 1
        assert not out.exists()
    module = types.SimpleNamespace(init=refuse, errors=types.SimpleNamespace(Error=RuntimeError))
    monkeypatch.setitem(sys.modules, "wandb", module)
    code, _, err = command(*given, "--track", "wandb")
    assert code == 2
    assert "cannot start: api_key not configured (no-tty); log in" in err
    assert not list(out.iterdir())


def test_scalars__lists_are_numbered_and_nulls_left_out() -> None:
    metrics = {"step": 3, "loss": 1.0, "norm": None, "rows": [1.0, None, 2.0]}
    assert dict(scalars(metrics)) == {"loss": 1.0, "rows/0": 1.0, "rows/2": 2.0}
