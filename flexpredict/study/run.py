"""Runs studies: their trials in turn or several at once. What is done is skipped."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flexpredict.config import WITHOUT_EFFECT, Settings, read_settings
from flexpredict.engine.distributed import StopSignal
from flexpredict.files import alone_in, write_bytes, write_text
from flexpredict.health.diagnosis import AILMENTS
from flexpredict.progress import Bars, say
from flexpredict.report.figures.style import to_png, to_svg
from flexpredict.run_folder import CONFIG
from flexpredict.study.figure import figures
from flexpredict.study.plan import Study, Trial
from flexpredict.study.pool import Pool
from flexpredict.study.tables import columns, failed_text, ill_text, markdown, summary
from flexpredict.train.loop import Interrupted
from flexpredict.version import VERSION

RESULTS, TABLE, SUMMARY = "results.jsonl", "table.md", "summary.json"
_NEEDED = {"variant", "seed", "settings", "asked", "found"}  # of a line


class Planned(NamedTuple):
    """A study, its trials that are to be made, the folder for all, others that count if done."""

    study: Study
    todo: Sequence[Trial]
    out: Path
    others: Sequence[Trial] = ()


def run_studies(
    planned: Sequence[Planned],
    *,
    runs: Path | None = None,
    jobs: int = 1,
    device: str | None = None,
    check: Callable[[Study, Sequence[Trial]], None] | None = None,
) -> list[list[dict[str, Any]]]:
    """Makes all trials and tables; gives the lines of each study's results.jsonl.

    A run that more than one of them asks for is made once.

    check: called for each study that has anything to do, with that, before anything is done.
    runs: the folder for all runs, each named by its settings; by default every study has its own,
        named by its variants.
    """
    with ExitStack() as locks:
        books = [_Book(one, locks) for one in planned]
        waiting = _waiting(books, runs, check)
        if waiting:
            _make(waiting, books, jobs, device)
        for book in books:
            book.write()
    for book in books:
        book.raise_failures()
    return [book.shown() for book in books]


def _waiting(
    books: Sequence["_Book"],
    runs: Path | None,
    check: Callable[[Study, Sequence[Trial]], None] | None,
) -> dict[Path, "_Run"]:
    """The runs to be made, by their folders."""
    waiting: dict[Path, _Run] = {}
    for book in books:
        todo = book.waiting()
        if todo and check is not None:
            check(book.study, todo)
        for trial in todo:
            folder = runs / trial.key if runs else book.out / trial.name
            run = waiting.setdefault(folder, _Run(folder, []))
            if run.wanted and run.wanted[0][1].key != trial.key:
                one, other = run.wanted[0][1].variant, trial.variant
                raise ValueError(f"variants {one!r} and {other!r} would share a folder: rename one")
            run.wanted.append((book, trial))
    for run in waiting.values():
        _check_begun(run.folder, run.wanted[0][1].settings)
    return waiting


def _make(
    waiting: Mapping[Path, "_Run"], books: Sequence["_Book"], jobs: int, device: str | None
) -> None:
    orders, jobs = {folder: run.order() for folder, run in waiting.items()}, min(jobs, len(waiting))
    say(
        f"{len(waiting)} runs to make or to measure, {jobs} at once: what they say, first how long "
        f"they take and how much memory, goes to {books[0].out}/worker-*.log"
    )
    with Pool(jobs, books[0].out, device) as pool, StopSignal() as stop:
        title = books[0].study.title if len(books) == 1 else f"{len(books)} studies"
        bars = Bars({title: len(waiting)}, unit="trial ")
        try:
            for done, (folder, answer) in enumerate(pool.work(orders, stop), 1):
                run = waiting[folder]
                run.keep(answer)
                name = run.wanted[0][1].name
                if (verdict := answer.get("verdict")) in AILMENTS:
                    say(f"{name} is {verdict}: flexpredict doctor {folder}")
                bars.update(title, done, answer.get("error") or name)
        finally:
            bars.close()
        if stop.received:
            raise Interrupted("stopped, and all runs are saved; the same command goes on")


def read_results(out: Path) -> list[dict[str, Any]]:
    """The lines of results.jsonl, if there is one."""
    found, path = [], out / RESULTS
    for number, text in enumerate(path.read_text("utf-8").splitlines() if path.exists() else (), 1):
        line = None
        with suppress(ValueError):
            line = json.loads(text)
        if not isinstance(line, dict) or not line.keys() >= _NEEDED:
            raise ValueError(
                f"{path}, line {number} is no result: take the line out, and its trial is measured "
                f"again"
            )
        found.append(line)
    return found


def write_results(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    write_text(out / RESULTS, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))


class _Book:
    """What is known of a study's trials, and the folder where it is written down."""

    def __init__(self, planned: Planned, locks: ExitStack) -> None:
        self.study, self.todo, self.out, self.others = planned
        self.failed: dict[str, str] = {}  # trials, and why
        _check_folder(self.out)
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            locks.enter_context(alone_in(self.out))
        except BlockingIOError:
            raise ValueError(
                f"another process works on the study in {self.out}: wait for it, or choose another "
                f"--out"
            ) from None
        self._lines = {(line["variant"], line["seed"]): line for line in read_results(self.out)}
        self._current: set[tuple[str, int]] = set()  # of them, those of the study as it is now
        write_results(self.out, list(self._lines.values()))  # from now on this folder is a study's

    def waiting(self) -> list[Trial]:
        """Trials that no line is of, with these settings and of all that is measured now."""
        for trial in (*self.todo, *self.others):
            known = self._lines.get(_key(trial))
            if (
                known is not None
                and known["settings"] == trial.settings.digest()
                and known.get("data", trial.settings.data) == trial.settings.data
                and known["asked"] == self.study.asked
            ):
                self._lines[_key(trial)] = self._line(trial, known)  # names may have changed
                self._current.add(_key(trial))
        found = [trial for trial in self.todo if _key(trial) not in self._current]
        if len(found) < len(self.todo):
            say(f"{len(self.todo) - len(found)} of {len(self.todo)} trials are done already")
        return found

    def add(self, trial: Trial, found: Mapping[str, Any]) -> None:
        self._lines[_key(trial)] = self._line(trial, found)
        self._current.add(_key(trial))
        write_results(self.out, self._in_order())

    def shown(self) -> list[dict[str, Any]]:
        planned = map(_key, (*self.todo, *self.others))
        return [self._lines[key] for key in planned if key in self._current]

    def write(self) -> None:
        """Lines, tables and figures."""
        if not (shown := self.shown()) and not self.failed:
            return
        for name in columns(shown):
            if all(line["found"].get(name) is None for line in shown):
                where = "docs/health.md lists the gauges" if name in self.study.gauges else (
                    f"{self.out}/worker-*.log have what the measure gives"
                )  # fmt: skip
                say(f"no run has {name!r}: {where}")
        if left := len(self._lines) - len(shown):
            say(f"{left} lines of {self.out / RESULTS} are of other seeds or settings, in no table")
        study = self.study
        write_results(self.out, self._in_order())
        table = f"{markdown(shown, study.baseline)}{ill_text(shown)}{failed_text(self.failed)}"
        write_text(self.out / TABLE, f"# {study.title}\n\n{study.question.strip()}\n\n{table}")
        write_text(self.out / SUMMARY, json.dumps(summary(shown, study.baseline), indent=1) + "\n")
        for name, figure in figures(shown, study.baseline).items() if shown else ():
            write_text(self.out / f"{name}.svg", to_svg(figure))
            write_bytes(self.out / f"{name}.png", to_png(figure))

    def raise_failures(self) -> None:
        if self.failed:
            (name, sentence), *more = self.failed.items()
            also = f" (and {', '.join(other for other, _ in more)})" if more else ""
            raise RuntimeError(
                f"{len(self.failed)} of {len(self.todo)} trials failed, what was found is in "
                f"{self.out / RESULTS}; {name}{also}: {sentence}"
            )

    def _in_order(self) -> list[dict[str, Any]]:
        """As they were planned, whichever was ready first; those of other calls come last."""
        planned = {key: self._lines[key] for key in map(_key, self.todo) if key in self._lines}
        return list((planned | self._lines).values())

    def _line(self, trial: Trial, found: Mapping[str, Any]) -> dict[str, Any]:
        study = self.study
        line = {
            "study": study.title, "variant": trial.variant, "seed": trial.seed,
            "group": trial.group, "swept": trial.swept,
            "settings": trial.settings.digest(), "recipe": study.recipe,
            "data": trial.settings.data, "asked": study.asked,
            "found": found["found"], "seconds": found["seconds"], "device": found["device"],
            "version": found.get("version", VERSION),
        }  # fmt: skip
        return line | {"verdict": found["verdict"]} if "verdict" in found else line


class _Run(NamedTuple):
    """A run to be made, and the trials, of one study or several, that it is."""

    folder: Path
    wanted: list[tuple[_Book, Trial]]

    def order(self) -> dict[str, Any]:
        """What a process is asked to make and to measure."""
        return {
            "settings": self.wanted[0][1].settings.model_dump(mode="json"),
            "run": str(self.folder),
            "measures": [
                {"name": name} | one.model_dump()
                for book, _ in self.wanted
                for name, one in book.study.measures.items()
            ],
            "gauges": sorted({name for book, _ in self.wanted for name in book.study.gauges}),
        }

    def keep(self, answer: dict[str, Any]) -> None:
        """Gives every study what it asked for."""
        values = iter(answer.get("measures", ()))
        for book, trial in self.wanted:
            found = dict(zip(book.study.measures, values, strict=False))
            found |= {name: answer.get("gauges", {}).get(name) for name in book.study.gauges}
            errors = [value["error"] for value in (answer, *found.values()) if _is_error(value)]
            errors += [
                f"{name} is {value}: flexpredict doctor {self.folder} may say why"
                for name, value in found.items()
                if isinstance(value, float) and not math.isfinite(value)
            ]
            if errors:
                book.failed[trial.name] = errors[0]
            else:
                book.add(trial, answer | {"found": found})


def _is_error(answer: Any) -> bool:
    return isinstance(answer, dict) and "error" in answer


def _key(trial: Trial) -> tuple[str, int]:
    return trial.variant, trial.seed


def _check_begun(run: Path, settings: Settings) -> None:
    """A study that has changed must not go on with the runs of the old one.

    Of a run on its own another length is fine, and so are images that have moved.
    """
    if not (run / CONFIG).exists():
        return
    if other := settings.other_than(read_settings(run / CONFIG), WITHOUT_EFFECT - {"data"}):
        raise ValueError(
            f"{run} holds a run with {other}: remove it, or choose another --out for what has "
            f"changed"
        )


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / RESULTS).exists():
        raise ValueError(f"{out} is not empty and holds no study: choose another --out")
