"""Other processes of a test: waiting for one has an end, and none outlives its test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Start = Callable[..., "subprocess.Popen[bytes]"]
_PATIENCE = 300.0  # seconds: a machine that is busy imports torch in a minute


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


@contextmanager
def starting() -> Iterator[Start]:
    """Starts Python with some words."""
    with ExitStack() as started:

        def start(*words: Any, **more: Any) -> "subprocess.Popen[bytes]":
            command = [sys.executable, *map(str, words)]
            process = subprocess.Popen(command, **{"env": environment()} | more)
            started.callback(_end, process)
            return process

        yield start


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        leads = os.getpgid(process.pid) == process.pid
        (os.killpg if leads else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def wait_until(what: Callable[[], Any], process: "subprocess.Popen[bytes] | None" = None) -> None:
    """Until something has happened, which may be what a process is there for."""
    end = time.monotonic() + _PATIENCE
    while not what():
        if process is not None:
            assert process.poll() is None, f"it ended before, with {process.returncode}"
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """The exit code, and what was written to standard error, if that is a pipe."""
    _, errors = process.communicate(timeout=_PATIENCE)
    return process.returncode, (errors or b"").decode()
