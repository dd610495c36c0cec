"""Runs of real processes: split over two, stopped by real signals, locked, killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import Start, ended, environment, wait_until
from short_runs import assert_same, command, logged, losses, weights

from flexpredict.engine import checkpoint

FLEXPREDICT = ["-m", "flexpredict"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], check=False, env=environment(), capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["--set=masking=paper", "--set=chunk_size=12"],
        ["--set=positions=annealed", "--set=chunk_size=12", "--set=accumulate=2"],
    ],
)
def test_two__equal_one(settings: list[str], photos: Path, tmp_path: Path) -> None:
    """torchrun with two processes: the same masks and noise, losses equal to rtol 1e-4.

    With chunks of 12 and 8 images per process, chunks are cut by the border between processes.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    for launch, run in ((FLEXPREDICT, one), ([*TORCHRUN, *FLEXPREDICT], two)):
        done = _run(*launch, *command(photos, run, *settings))
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(one), losses(two), rtol=1e-4)
    first, second = weights(one), weights(two)
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-3, atol=5e-5, err_msg=name)


def test_two__what_one_finds_wrong_both_say(photos: Path, tmp_path: Path) -> None:
    """Nobody is left to wonder why the connection was closed."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    done = _run(*TORCHRUN, *FLEXPREDICT, *command(photos, tmp_path / "full"))
    assert done.returncode != 0
    assert "holds no run: choose another --out" in done.stderr
    assert "Connection closed" not in done.stderr


def _two(folder: Path, change: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Two processes in which something of the loop is another."""
    program = folder / "changed.py"
    lines = ["import os", "from flexpredict.cli import main", "from flexpredict.train import loop"]
    program.write_text("\n".join([*lines, change, "main()"]))
    return _run(*TORCHRUN, str(program), *words)


def test_two__one_alone_looks_at_the_folder(photos: Path, tmp_path: Path) -> None:
    """The other would see what the first has begun to write."""
    change = "if os.environ['RANK'] == '1': loop.check_free = None"
    done = _two(tmp_path, change, command(photos, tmp_path / "run"))
    assert done.returncode == 0, done.stderr


def test_two__one_cannot_save_and_it_is_said(photos: Path, tmp_path: Path) -> None:
    change = "def full(*_, **__): raise OSError(28, 'No space left on device')"
    change += "\nloop.checkpoint.save = full"
    done = _two(tmp_path, change, command(photos, tmp_path / "run"))
    assert done.returncode != 0
    assert "make room, and --resume goes on from what was saved before" in done.stderr
    assert "gloo" not in done.stderr  # torchrun may end the other before it speaks, too


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal__saves_and_exits_75(
    number: int, photos: Path, tmp_path: Path, start: Start
) -> None:
    """A real process, a real signal at an unknown step; then resume to the same end."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    more = ["--set=steps=200", "--set=checkpoint_every=1000"]
    done = _run(*FLEXPREDICT, *command(photos, whole, *more))
    assert done.returncode == 0, done.stderr
    words = [*FLEXPREDICT, *command(photos, run, *more)]
    process = start(*words, stderr=subprocess.PIPE)
    wait_until(lambda: logged(run, 5), process)
    process.send_signal(number)
    code, errors = ended(process)
    assert code == 75, errors
    assert "add --resume to go on" in errors
    assert 5 <= len(losses(run)) < 200
    done = _run(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(whole, run)


def test_signal__to_the_whole_group_saves_all_the_same(
    photos: Path, tmp_path: Path, start: Start
) -> None:
    """As a terminal, `timeout` or a scheduler sends it: to workers too."""
    run = tmp_path / "run"
    more = ["--set=steps=3000", "--set=checkpoint_every=1000", "--set=workers=2"]
    process = start(
        *FLEXPREDICT, *command(photos, run, *more), stderr=subprocess.PIPE, start_new_session=True
    )
    wait_until(lambda: logged(run, 5), process)
    os.killpg(process.pid, signal.SIGTERM)
    code, errors = ended(process)
    assert code == 75, errors
    assert checkpoint.complete(run)[-1].name == f"step-{len(losses(run)):08d}"


HOLDS = """
import pathlib, signal
from flexpredict.cli import main
from flexpredict.train import loop
def hold(*_):
    pathlib.Path("ready").touch()
    signal.pause()
loop.hold = hold
main()
"""


def test_signal__before_training_has_begun(photos: Path, tmp_path: Path, start: Start) -> None:
    """As while a large set is decoded: there is nothing to save, and a scheduler may try again."""
    (tmp_path / "holds.py").write_text(HOLDS)
    words = command(photos, tmp_path / "run")
    process = start("holds.py", *words, stderr=subprocess.PIPE, cwd=tmp_path)
    wait_until((tmp_path / "ready").exists, process)
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 75, errors
    assert "stopped while there was nothing to save; add --resume to go on" in errors
    done = _run(*FLEXPREDICT, *words, "--resume")
    assert done.returncode == 0, done.stderr


def test_lock__one_process_trains_in_a_folder_and_a_killed_one_leaves_no_lock(
    photos: Path, tmp_path: Path, start: Start
) -> None:
    """Those that it has forked live on for some seconds."""
    run = tmp_path / "run"
    words = [*FLEXPREDICT, *command(photos, run, "--set=workers=2", "--resume")]
    first = start(*words, "--set=steps=3000", stderr=subprocess.DEVNULL)
    wait_until((run / "checkpoints/latest").exists, first)
    second = _run(*words, "--set=steps=3000")
    assert second.returncode == 2
    assert f"another process trains in {run}: wait for it" in second.stderr
    assert first.poll() is None
    first.kill()
    first.wait()
    newest = checkpoint.newest(run)
    assert newest is not None
    steps = int(newest.name.removeprefix("step-")) + 5
    done = _run(*words, f"--set=steps={steps}")
    assert done.returncode == 0, done.stderr
    assert len(losses(run)) == steps
