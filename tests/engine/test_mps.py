"""The daemon that lets processes share a GPU, here a script that notes what it is told."""

from pathlib import Path

import pytest

from flexpredict.engine import mps

SCRIPT = """#!/bin/sh
if [ "$1" = -d ]; then echo "begin $CUDA_MPS_PIPE_DIRECTORY" >> {log}; exit {code}; fi
echo "$(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _install(tmp_path, code=0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "_USUAL", tmp_path / "nothing")
    return tmp_path / "told.txt"


def _install(folder: Path, code: int) -> None:
    control = folder / "nvidia-cuda-mps-control"
    control.write_text(SCRIPT.format(log=folder / "told.txt", code=code))
    control.chmod(0o755)


def test_sharing__begins_a_daemon_and_ends_it(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "_TRY", "import os; os.environ['CUDA_MPS_PIPE_DIRECTORY']")
    with mps.sharing() as variables:
        pipe = variables["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(pipe).is_dir()
        assert told.read_text() == f"begin {pipe}\n"
    assert told.read_text() == f"begin {pipe}\nquit {pipe}\n"
    assert not Path(pipe).exists()


def test_sharing__is_left_out_where_processes_cannot(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "_TRY", "raise SystemExit(1)")
    with mps.sharing() as variables:
        assert variables == {}
    assert [line.split()[0] for line in told.read_text().splitlines()] == ["begin", "quit"]


@pytest.mark.parametrize("why", ["not installed", "does not begin", "is there already", "asked"])
def test_sharing__is_left_out(told: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "not installed":
        monkeypatch.setenv("PATH", "")
    elif why == "does not begin":
        _install(told.parent, code=1)
    elif why == "is there already":
        monkeypatch.setattr(mps, "_USUAL", told.parent)
    else:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    with mps.sharing() as variables:
        assert variables == {}
    assert "quit" not in (told.read_text() if told.exists() else "")
