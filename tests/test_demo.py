"""The demo: quickly for its behaviour, slowly for what it claims."""

import importlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from processes import Start, ended, wait_until
from short_runs import logged

import flexpredict as fp

ROWS = ["majority", "pixels", "untrained", "deterministic", "stop"]
TASKS = ["count", "dist", "class"]


def test_demo__prints_one_json_object_and_goes_on(tmp_path: Path) -> None:
    """A real process; then a longer demo goes on from where the shorter one ended."""
    out = tmp_path / "demo"

    def demo(minutes: float) -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "flexpredict", "demo", "--out", str(out), "--json",
             "--minutes", str(minutes), "--device", "cpu"],
            check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return dict(json.loads(done.stdout))

    first = demo(0.01)
    assert [key for key in first if key in ROWS] == ROWS
    assert all(list(first[row]) == TASKS for row in ROWS)  # type: ignore[call-overload]
    page = (out / "report.html").read_text()
    assert page.count("data:image/svg+xml") == 2
    assert page.count("data:image/png") == 3
    assert not re.search(r"""(src|href)=["']?http|url\(http|<script""", page)
    steps = first["steps"]
    second = demo(0.02)
    assert second["steps"] > steps  # type: ignore[operator]
    for run in ("deterministic", "stop"):
        lines = (out / run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, second["steps"] + 1))  # type: ignore[operator]


def test_demo__a_signal_saves_both_runs(tmp_path: Path, start: Start) -> None:
    out = tmp_path / "demo"
    words = ["-m", "flexpredict", "demo", "--out", out, "--device", "cpu"]
    process = start(*words, stderr=subprocess.PIPE)
    wait_until(lambda: all(logged(out / run, 3) for run in ("deterministic", "stop")), process)
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 75, errors
    for run in ("deterministic", "stop"):
        assert fp.load(out / run).dim == 64  # from the checkpoint that the signal made it write


@pytest.mark.slow
def test_demo__pretraining_helps_over_five_seeds(tmp_path: Path) -> None:
    """Trained minus untrained, mean over the tasks: at least 3 points, positive in every seed."""
    gains = {"deterministic": [], "stop": []}  # type: dict[str, list[float]]
    for seed in range(5):
        accuracies = fp.demo(tmp_path / str(seed), seed=seed, device="cpu").accuracies
        for run, gain in gains.items():
            gain.append(np.mean([accuracies[run][t] - accuracies["untrained"][t] for t in TASKS]))
    print(gains)
    for gain in gains.values():
        assert np.mean(gain) >= 3
        assert min(gain) > 0


def test_names__a_module_does_not_hide_a_function() -> None:
    """Importing everything leaves the public names what they are."""
    for module in pkgutil.walk_packages(fp.__path__, "flexpredict."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert all(not isinstance(getattr(fp, name), ModuleType) for name in fp.__all__)
