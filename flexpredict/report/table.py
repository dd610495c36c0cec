"""The tables of the paper, with the reader's own figures beside the published ones."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flexpredict.config import Settings
from flexpredict.report.runs import Run, read_run


@dataclass(frozen=True, slots=True)
class Cell:
    published: float
    own: float | None = None
    run: str | None = None
    task: str | None = None  # of several variants of a task that would do, the one that is shown

    @property
    def difference(self) -> float | None:
        return None if self.own is None else self.own - self.published


@dataclass(frozen=True, slots=True)
class PublishedTable:
    number: str
    title: str
    note: str
    columns: list[str]  # titles
    rows: list[tuple[str, str, list[Cell]]]  # kind, model, cells
    remarks: list[str]  # on the reader's own figures: what they are of, where that is a question


def table_numbers() -> list[str]:
    return list(_published()["tables"])


def paper_table(number: str, runs: Iterable[Path] = ()) -> PublishedTable:
    """A table of the paper; figures of runs come from their evaluations/ folders."""
    published = _published()
    if number not in published["tables"]:
        raise ValueError(
            f"table {number!r} is not one of the paper's with results: choose one of "
            f"{', '.join(published['tables'])}"
        )
    table = published["tables"][number]
    known = [read_run(run) for run in runs]
    columns = [published["columns"][name] for name in table["columns"]]
    rows, shown = [], []
    remarks: list[str] = []
    for kind, model, *figures in table["rows"]:
        epochs = table.get("epochs")
        own = [
            run
            for run in known
            if _is_of(run.settings, kind, model) and epochs in (None, run.settings.epochs)
        ]
        cells = []
        for figure, column in zip(figures, columns, strict=True):
            found = list(_found(column, own))
            cells.append(Cell(figure, *found[0][1:4]) if found else Cell(figure))
            shown += [one.run for one in found[:1]]
            remarks += _readings(column, found)
        rows.append((kind, model, cells))
    titles = [column["title"] for column in columns]
    remarks += _unlike(list({run.path: run for run in shown}.values()))
    return PublishedTable(number, table["title"], table.get("note", ""), titles, rows, remarks)


@functools.cache
def _published() -> Mapping[str, Any]:
    text = (resources.files("flexpredict.report") / "published.yaml").read_text("utf-8")
    return dict(yaml.safe_load(text))


def _is_of(settings: Settings, kind: str, model: str) -> bool:
    """Whether a run is of this row: its settings are those that the row is about."""
    published = _published()
    if kind not in published["kinds"] or model not in published["models"]:
        return False  # other people's methods
    of_model = dict(published["models"][model])
    noise_std = of_model.pop("noise_std")
    wanted = {**published["every_kind"], **published["kinds"][kind], **of_model}
    if "noise_std" in wanted:
        wanted["noise_std"] = noise_std
    return all(getattr(settings, key) in _some(value) for key, value in wanted.items())


class _Own(NamedTuple):
    run: Run
    figure: float
    path: str
    task: str
    reading: str  # where the paper can be read in several ways, which one this is


def _found(column: Mapping[str, Any], runs: Iterable[Run]) -> Iterator[_Own]:
    """Evaluations that are the column's, run by run."""
    wanted = {key: value for key, value in column.items() if key not in ("title", "key")}
    several = [key for key, value in wanted.items() if isinstance(value, list)]
    for run in runs:
        for found in run.evaluations:
            fits = all(found.get(key) in _some(value) for key, value in wanted.items())
            # What was asked for unlike the protocol is not the column's, but for other seeds.
            unlike = set(found.get("variant", {})) - {"seed", "draws"}
            usual = found.get("encoder") == "target" and not unlike
            if fits and usual and found["result"].get(column["key"]) is not None:
                figure, reading = found["result"][column["key"]], [found[key] for key in several]
                yield _Own(run, figure, str(run.path), found["task"], ", ".join(reading))


def _readings(column: Mapping[str, Any], found: Sequence[_Own]) -> Iterator[str]:
    """By which reading a figure is, and what the others give."""
    if found and found[0].reading:
        first, path = found[0], found[0].path
        more = {one.reading: one.figure for one in reversed(found) if one.path == path}
        others = [f"{name} gives {own:.1f}" for name, own in more.items() if name != first.reading]
        yield "; ".join([f"{first.path}, {column['title']}: by {first.reading}", *others])


def _unlike(runs: Sequence[Run]) -> Iterator[str]:
    """In what runs differ from the published ones, and from each other."""
    for run in runs:
        if run.settings.objective == "ijepa":
            given = {key: getattr(run.settings, key) for key in _published()["as_published"]}
            unlike = [f"{k}={v}" for k, v in given.items() if v != _published()["as_published"][k]]
            if unlike:
                yield f"{run.path} has {', '.join(unlike)}, unlike the paper"
    augmented = {run.settings.augment for run in runs}
    if len(augmented) > 1:
        each = ", ".join(f"{run.path} {run.settings.augment}" for run in runs)
        yield f"these runs differ in augmentation, too: {each}"


def _some(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
