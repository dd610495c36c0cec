"""Processes that make runs, one after the other each: libraries are loaded and compiled once."""

import json
import os
import selectors
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


class Pool:
    """Processes that each get an order, answer with a line of JSON, and get the next."""

    def __init__(self, jobs: int, out: Path, device: str | None) -> None:
        self._out, self._device, self._jobs = out, device, jobs
        self._threads = str(threads_each(jobs))
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Pool":
        shared: dict[str, str] = {}
        if self._jobs > 1 and pick_device(self._device).type == "cuda":
            shared = self._stack.enter_context(mps.sharing())
        threads = {"OMP_NUM_THREADS": self._threads}
        for number in range(self._jobs):
            log = self._stack.enter_context((self._out / f"worker-{number}.log").open("ab"))
            command = [sys.executable, "-m", "flexpredict", "trials"]
            command += ["--device", self._device] if self._device else []
            self._workers.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=os.environ | threads | shared,
                    start_new_session=True,  # Ctrl-C reaches us alone, and we tell each of them
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            with suppress(BrokenPipeError), worker:  # closes its pipes, by which it is told to go
                pass
        self._stack.close()

    def work(
        self, orders: Mapping[Path, Mapping[str, Any]], stop: StopSignal
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Gives answers as they come, by the folders that the orders are for."""
        waiting = list(orders)
        busy: dict[int, Path] = {}

        def give(worker: subprocess.Popen[bytes]) -> None:
            if waiting:
                busy[worker.pid] = folder = waiting.pop(0)
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(orders[folder]).encode() + b"\n")
                worker.stdin.flush()

        with selectors.DefaultSelector() as ready:
            for worker in self._workers:
                ready.register(worker.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
                give(worker)
            told = False
            while busy:
                if stop.received and not told:
                    told = True
                    for worker in self._workers:
                        worker.terminate()  # it saves and leaves
                for key, _ in ready.select(_POLL_SECONDS):
                    worker = key.data
                    line = worker.stdout.readline()
                    made = busy.pop(worker.pid, None)
                    if not line:  # it is gone
                        ready.unregister(worker.stdout)
                        if made is not None and not stop.received:
                            log = f"see {self._out}/worker-{self._workers.index(worker)}.log"
                            yield made, {"error": f"its process ended early: {log}"}
                        continue
                    if not stop.received:
                        give(worker)
                    assert made is not None
                    yield made, json.loads(line)
        for folder in waiting if not stop.received else ():
            yield folder, {"error": "no process was left to make it: the same command goes on"}
