"""What is still to be measured on a GPU, in order, for machines that are lent by the minute.

    FLEXPREDICT_DATA=… setsid python benchmarks/gpu_queue.py WORK/ --seconds 1500 &    # once
    python benchmarks/gpu_queue.py WORK/ --watch 560 --home $OUT       # until it says that it ended

The first works, on and on, however often it is looked at: waves of commands, those of one wave at
once, timings alone. A wave begins if there is time for it; studies are told to save when time is up
(SIGTERM), and go on in a later call from WORK/, where results/ is copied to first. Output goes to
WORK/NAME.log, what is done to WORK/done. The second says what comes, and packs logs, lines of
results, and settings and gauged lines of runs into HOME/kept.tar.gz, finished or not. Where there
is no WORK/, not even after a while, it fails: the machine is another one.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from flexpredict.engine.mps import sharing
from flexpredict.files import alone_in
from flexpredict.health.diagnosis import GAUGED
from flexpredict.run_folder import CONFIG, METRICS, read_metrics
from flexpredict.study.plan import read_study, study_names, trials
from flexpredict.train.loop import Interrupted

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SAID = "said.txt"  # what the queue says
WATCHED = 20.0  # seconds from one look at it to the next, in which one that is started begins
SAVING, CLEARING = 25.0, 5.0  # seconds for saving after a signal; of these, for all that is left
THREADS = "2"  # of a process beside others; studies know better for theirs


class Work(NamedTuple):
    name: str
    seconds: float  # that it needs; of what can go on later, that it is worth beginning with
    command: str  # of python; {work} is the folder


def _step(name: str, seconds: float, options: str) -> Work:
    return Work(name, seconds, f"{HERE / 'step.py'} {options}")


def _study(name: str, names: str, jobs: int) -> Work:
    out = "{work}/results" if " " in names else f"{{work}}/results/{names}"  # each has its folder
    return Work(name, 90, f"-m flexpredict study {names} --out {out} --jobs {jobs}")


def _headline(stages: str, jobs: int) -> Work:
    name = stages.replace(" ", "+")
    return Work(name, 120, f"{HERE / 'headline.py'} {{work}}/results {stages} --jobs {jobs}")


RATE = "rate --batches 1024"
PICTURES = "noise,imagenette-sample:train"
QUEUE: list[list[Work]] = [
    # What closes a question, shortest first: gauges; rates since the target encoder adds a bias
    # within its product, with images of two kinds; and what needs no quiet machine.
    [Work("gauges", 60, f"{HERE / 'gauges.py'} --device cuda small/stop-vit-t8-64")],
    [_step("rate-l16", 180, f"{RATE} --models l16 --reference 512 --images {PICTURES}")],
    [_step("rate-b16", 90, f"{RATE} --models b16")],
    [
        _step("loss-0", 90, "loss --models b16 --batches 64"),
        _step("loss-1", 90, "loss --models b16 --batches 64 --weights 1"),
        Work("tests", 90, "-m pytest -m gpu -q tests/model tests/train/test_gpu.py tests/evaluate"),
        _headline("beside", 2),
    ],
    # What goes beyond.
    [Work("products", 60, f"{HERE / 'products.py'} --models l16")],
    [_headline("paper-noise", 5)],
    [_study("ablations", "figure3 figure4", 6)],
    [_headline("long-headline", 4)],
    [_study("tables", "table6 table8 tied form norm augmentation masks effective-batch", 6)],
    [_study("sweeps", "tradeoff covariances block-scale", 6)],
    [_study("scenes", "figure4-scenes", 6)],
]


def run_queue(
    queue: Sequence[Sequence[Work]], work: Path, seconds: float, names: Sequence[str] = ()
) -> None:
    """Waves in their order, as far as the time goes; by name only those that are asked for."""
    end = time.monotonic() + seconds
    for wave in queue:
        done = _done(work)
        todo = [one for one in wave if one.name not in done and (one.name in names or not names)]
        if not todo:
            continue
        left = end - time.monotonic() - SAVING
        if left < max(one.seconds for one in todo):
            _say(work, f"{left:.0f} s are too few for {', '.join(one.name for one in todo)}")
            return
        _run_wave(todo, work, end - SAVING)


def _run_wave(wave: Sequence[Work], work: Path, until: float) -> None:
    with sharing() if len(wave) > 1 else nullcontext({}) as variables:
        variables = variables | ({"OMP_NUM_THREADS": THREADS} if len(wave) > 1 else {})
        running = {one: _start(one, work, variables) for one in wave}
        began = time.monotonic()
        for limit, end in (
            (until, lambda process: process.terminate()),
            (until + SAVING - CLEARING, lambda process: os.killpg(process.pid, signal.SIGKILL)),
            (math.inf, None),
        ):
            while running and time.monotonic() < limit:
                time.sleep(0.1)
                for one in [one for one, process in running.items() if process.poll() is not None]:
                    _note(one, running.pop(one).returncode, time.monotonic() - began, work)
            for process in running.values():
                end(process)


def _start(one: Work, work: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-u", *one.command.format(work=work).split()]
    with (work / f"{one.name}.log").open("ab") as log:
        return subprocess.Popen(
            command, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
        )


def _note(one: Work, code: int, seconds: float, work: Path) -> None:
    state = {0: "done", Interrupted.EXIT_CODE: "to go on"}.get(code, f"failed ({code})")
    tail = (work / f"{one.name}.log").read_text("utf-8", errors="replace").splitlines()[-8:]
    _say(work, "\n  ".join([f"{one.name}: {state} after {seconds:.0f} s", *tail]))
    if code == 0:
        with (work / "done").open("a") as file:
            file.write(f"{one.name}\n")


def _say(work: Path, text: str) -> None:
    with (work / SAID).open("a") as file:
        file.write(f"{text}\n")


def watch(work: Path, seconds: float) -> bool:
    """Prints what the queue in a folder says, and how far studies are; whether it has ended.

    That is if nobody works there at two looks, one after the other.
    """
    end, said, known, idle = time.monotonic() + seconds, 0, "", 0
    while True:
        with ExitStack() as lock:
            idle = idle + 1 if _locked(work, lock) else 0
        text = (work / SAID).read_text("utf-8") if (work / SAID).exists() else ""
        print(text[said:], end="", flush=True)
        said = len(text)
        lasts = {log.stem: _last(log) for log in sorted(work.glob("*.log"))}
        if (now := "\n".join(f"  {name}: {line}" for name, line in lasts.items())) != known:
            print(time.strftime("%T"), now, sep="\n", flush=True)
            known = now
        if idle == 2 or time.monotonic() > end:
            return idle == 2
        time.sleep(min(WATCHED, max(0.0, end - time.monotonic())))


def _locked(work: Path, lock: ExitStack) -> bool:
    """Whether nobody works there; if so, we do now."""
    try:
        lock.enter_context(alone_in(work))
    except BlockingIOError:
        return False
    return True


def _last(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").splitlines()
    return lines[-1][:160] if lines else ""


def _comes(what: Callable[[], bool]) -> bool:
    """Whether it is so, now or within a while."""
    end = time.monotonic() + WATCHED
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _done(work: Path) -> set[str]:
    path = work / "done"
    return set(path.read_text("utf-8").split()) if path.exists() else set()


def keep(work: Path, home: Path) -> None:
    """All that is small: logs, lines of results, and of runs their settings and gauged lines."""
    partial = home / "kept.tar.gz.partial"
    with tarfile.open(partial, "w:gz") as tar:
        for path in [*work.glob("*.log"), *work.glob("done"), *work.glob(SAID)]:
            tar.add(path, path.name)
        for path in work.glob("results/*/results.jsonl"):
            tar.add(path, str(path.relative_to(work)))
        for path in work.glob("results/*.json"):
            tar.add(path, str(path.relative_to(work)))
        for name, run in _runs(work / "results"):
            lines = [line for line in read_metrics(run) if GAUGED in line]
            text = "".join(json.dumps(line) + "\n" for line in lines).encode()
            tar.add(run / CONFIG, f"{name}/{CONFIG}")
            about = tarfile.TarInfo(f"{name}/{METRICS}")
            about.size = len(text)
            tar.addfile(about, BytesIO(text))
    partial.replace(home / "kept.tar.gz")


def _runs(results: Path) -> Iterator[tuple[str, Path]]:
    """Runs that were made here, under the names that results/ has for them."""
    for path in results.glob(f"*/*/{CONFIG}"):
        if path.parts[-3] != "runs":
            yield f"results/{path.parts[-3]}/runs/{path.parts[-2]}", path.parent
    shared = {path.name: path for path in results.glob("runs/*") if (path / CONFIG).exists()}
    for study in study_names() if shared else ():
        plan = read_study(study)
        for trial in trials(plan, plan.data or "scenes"):
            if run := shared.get(trial.key):
                yield f"results/{study}/runs/{trial.name}", run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help="these alone, and not the whole queue")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seconds", type=float, help="works, for so long")
    which.add_argument("--watch", type=float, help="looks, for so many seconds, at who works")
    parser.add_argument("--home", type=Path, help="where what is kept goes, of what is looked at")
    given = parser.parse_intermixed_args()
    if unknown := set(given.names) - {one.name for wave in QUEUE for one in wave}:
        parser.error(f"nothing is called {unknown.pop()!r} here")
    work = given.work.resolve()
    if given.watch is not None:
        if not _comes(work.exists):
            sys.exit(f"there is no {work}: this is another machine, or nothing was begun")
        ended = watch(work, given.watch)
        print("it has ended" if ended else "it goes on")
        if given.home is not None:
            keep(work, given.home)
        return
    work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as lock:
        if not _comes(lambda: _locked(work, lock)):  # it may only be looked at
            sys.exit(f"somebody works in {work} already")
        if not (work / "results").exists():
            shutil.copytree(RESULTS, work / "results")
        run_queue(QUEUE, work, given.seconds, given.names)


if __name__ == "__main__":
    main()
