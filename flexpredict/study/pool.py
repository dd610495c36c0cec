"""Processes that make runs, one after the other each: libraries are loaded and compiled once."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from flexpredict.data.cores import threads_each
from flexpredict.engine import mps
from flexpredict.engine.distributed import StopSignal, pick_device

_POLL_SECONDS = 0.5
_MOST_LOST = 3  # processes that end early before one answers, and no more are started


class Pool:
    """Processes that each get an order, answer with a line of JSON, and get the next."""

    def __init__(self, jobs: int, out: Path, device: str | None) -> None:
        self._out, self._device, self._jobs = out, device, jobs
        self._variables = {"OMP_NUM_THREADS": str(threads_each(jobs))}
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Pool":
        if self._jobs > 1 and pick_device(self._device).type == "cuda":
            self._variables |= self._stack.enter_context(mps.sharing())
        self._workers = [self._start(number) for number in range(self._jobs)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            with suppress(BrokenPipeError), worker:  # closes its pipes, by which it is told to go
                pass
        self._stack.close()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flexpredict", "trials", "--parent", str(os.getpid())]
        command += ["--device", self._device] if self._device else []
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | self._variables,
                start_new_session=True,  # Ctrl-C reaches us alone, and we tell each of them
            )

    def _log(self, number: int) -> Path:
        return self._out / f"worker-{number}.log"

    def work(
        self, orders: Mapping[Path, Mapping[str, Any]], stop: StopSignal
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Gives answers as they come, by the folders that the orders are for."""
        waiting = list(orders)
        busy: dict[int, Path] = {}
        lost = 0

        def give(number: int) -> None:
            worker = self._workers[number]
            if waiting:
                busy[number] = folder = waiting.pop(0)
                assert worker.stdin is not None
                with suppress(BrokenPipeError):  # that it is gone shows where it should answer
                    worker.stdin.write(json.dumps(orders[folder]).encode() + b"\n")
                    worker.stdin.flush()

        with selectors.DefaultSelector() as ready:

            def take_in(number: int) -> None:
                ready.register(self._workers[number].stdout, selectors.EVENT_READ, number)  # type: ignore[arg-type]
                give(number)

            for number in range(self._jobs):
                take_in(number)
            told = False
            while busy:
                if stop.received and not told:
                    told = True
                    for worker in self._workers:
                        worker.terminate()  # it saves and leaves
                for key, _ in ready.select(_POLL_SECONDS):
                    number, worker = key.data, self._workers[key.data]
                    assert worker.stdout is not None
                    line = worker.stdout.readline()
                    made = busy.pop(number, None)
                    lost = 0 if line else lost + 1
                    if not line:  # it is gone
                        ready.unregister(worker.stdout)
                        ending = _ending(worker)
                        # All at once may have one cause, as a GPU that they share.
                        if waiting and not stop.received and lost < max(_MOST_LOST, 2 * self._jobs):
                            self._workers[number] = self._start(number)
                            take_in(number)
                        if made is not None and not stop.received:
                            yield made, {"error": f"its process {ending}: see {self._log(number)}"}
                        continue
                    if not stop.received:
                        give(number)
                    assert made is not None
                    yield made, json.loads(line)
        for folder in waiting if not stop.received else ():
            yield (
                folder,
                {"error": "not begun, since process after process ended early; the same command "
                 "goes on"},
            )  # fmt: skip


def _ending(worker: subprocess.Popen[bytes]) -> str:
    """How a process ended that nobody had told to."""
    with suppress(BrokenPipeError), worker:  # closes its pipes
        code = worker.wait()
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended early, with code {code}"
