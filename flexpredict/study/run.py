"""Runs a study: trials in turn or several at once, each by a process that works off one after the
other, so that libraries are loaded and compiled once. What is done is skipped."""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from flexpredict.data.cores import usable_cores
from flexpredict.engine import mps
from flexpredict.engine.checkpoint import write_text
from flexpredict.engine.distributed import StopSignal, pick_device
from flexpredict.report.figures.style import to_png, to_svg
from flexpredict.study.figure import figures
from flexpredict.study.plan import Study, Trial
from flexpredict.study.tables import markdown, summary
from flexpredict.train.loop import Interrupted
from flexpredict.train.monitor import Bars, say
from flexpredict.version import VERSION

RESULTS, TABLE, SUMMARY = "results.jsonl", "table.md", "summary.json"
_POLL_SECONDS = 0.5

Lines = dict[tuple[str, int], dict[str, Any]]  # of results.jsonl, by variant and seed


def run_study(
    study: Study, todo: Sequence[Trial], out: Path, *, jobs: int = 1, device: str | None = None
) -> list[dict[str, Any]]:
    """Makes all trials and tables below `out`; gives the lines of its results.jsonl."""
    _check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    lines: Lines = {(line["variant"], line["seed"]): line for line in read_results(out)}
    waiting = []
    for trial in todo:
        known = lines.get(_key(trial))
        if known is not None and _is_done(known, trial, study):
            lines[_key(trial)] = _line(trial, study, known)  # names may have changed
        else:
            waiting.append(trial)
    if len(waiting) < len(todo):
        say(f"{len(todo) - len(waiting)} of {len(todo)} trials are done already")
    failed: dict[str, str] = {}
    if waiting:
        with _Pool(min(jobs, len(waiting)), out, device) as pool, StopSignal() as stop:
            bars = Bars({study.title: len(waiting)}, unit="trial ")
            try:
                for trial, found in pool.work(waiting, study, out, stop):
                    if "error" in found:
                        failed[trial.name] = found["error"]
                    else:
                        lines[_key(trial)] = _line(trial, study, found)
                        write_results(out, _in_order(lines, todo))
                    done = len(failed) + sum(_key(t) in lines for t in waiting)
                    bars.update(study.title, done, found.get("error") or trial.name)
            finally:
                bars.close()
            if stop.received:
                raise Interrupted("stopped, and all runs are saved; the same command goes on")
    shown = [lines[key] for key in map(_key, todo) if key in lines]
    if shown:
        write_results(out, _in_order(lines, todo))
        write_text(out / TABLE, f"# {study.title}\n\n{markdown(shown, study.baseline)}")
        write_text(out / SUMMARY, json.dumps(summary(shown, study.baseline), indent=1) + "\n")
        for name, figure in figures(shown, study.baseline).items():
            write_text(out / f"{name}.svg", to_svg(figure))
            (out / f"{name}.png").write_bytes(to_png(figure))
    if failed:
        name, sentence = next(iter(failed.items()))
        raise RuntimeError(
            f"{len(failed)} of {len(todo)} trials failed, the others are in {out / RESULTS}; "
            f"{name}: {sentence}"
        )
    return shown


def _in_order(lines: Lines, todo: Sequence[Trial]) -> list[dict[str, Any]]:
    """As they were planned, whichever was ready first; those of other calls come last."""
    planned = {key: lines[key] for key in map(_key, todo) if key in lines}
    return list((planned | lines).values())


def read_results(out: Path) -> list[dict[str, Any]]:
    """The lines of results.jsonl, if there is one."""
    found = []
    with suppress(FileNotFoundError):
        for text in (out / RESULTS).read_text().splitlines():
            found.append(json.loads(text))
    return found


def write_results(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    write_text(out / RESULTS, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


def _key(trial: Trial) -> tuple[str, int]:
    return trial.variant, trial.seed


def _is_done(line: dict[str, Any], trial: Trial, study: Study) -> bool:
    """Whether a line is of these settings and of all that is measured now."""
    return line["settings"] == trial.settings.digest() and line["asked"] == study.asked


def _line(trial: Trial, study: Study, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "study": study.title, "variant": trial.variant, "seed": trial.seed,
        "group": trial.group, "swept": trial.swept,
        "settings": trial.settings.digest(), "recipe": study.recipe, "asked": study.asked,
        "found": found["found"], "seconds": found["seconds"], "device": found["device"],
        "version": VERSION,
    }  # fmt: skip


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another --out")
    if (
        out.exists()
        and any(out.iterdir())
        and not (out / RESULTS).exists()
        and not any((run / "config.yaml").exists() for run in out.iterdir())
    ):
        raise ValueError(f"{out} is not empty and holds no study: choose another --out")


class _Pool:
    """Processes that make trials: each gets one, answers with a line of JSON, gets the next."""

    def __init__(self, jobs: int, out: Path, device: str | None) -> None:
        self._out, self._device, self._jobs = out, device, jobs
        self._threads = str(max(1, usable_cores() // jobs))
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> "_Pool":
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

    def work(self, trials: Sequence[Trial], study: Study, out: Path, stop: StopSignal) -> Any:
        """Gives (trial, what was found) as they come."""
        waiting, busy = list(trials), {}
        with selectors.DefaultSelector() as ready:
            for worker in self._workers:
                ready.register(worker.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
                if waiting:
                    busy[worker.pid] = self._give(worker, waiting.pop(0), study, out)
            told = False
            while busy:
                if stop.received and not told:
                    told = True
                    for worker in self._workers:
                        worker.terminate()  # it saves and leaves
                for key, _ in ready.select(_POLL_SECONDS):
                    worker = key.data
                    line = worker.stdout.readline()
                    trial = busy.pop(worker.pid, None)
                    if not line:  # it is gone
                        ready.unregister(worker.stdout)
                        if trial is not None and not stop.received:
                            log = f"see {out}/worker-{self._workers.index(worker)}.log"
                            yield trial, {"error": f"its process ended early: {log}"}
                        continue
                    if waiting and not stop.received:
                        busy[worker.pid] = self._give(worker, waiting.pop(0), study, out)
                    assert trial is not None
                    yield trial, json.loads(line)

    @staticmethod
    def _give(worker: subprocess.Popen[bytes], trial: Trial, study: Study, out: Path) -> Trial:
        order = {
            "settings": trial.settings.model_dump(mode="json"),
            "run": str(out / trial.name),
            "measures": {name: one.model_dump() for name, one in study.measures.items()},
            "gauges": study.gauges,
        }
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(order).encode() + b"\n")
        worker.stdin.flush()
        return trial
