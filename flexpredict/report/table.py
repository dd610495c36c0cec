"""The tables of the paper, with the reader's own figures beside the published ones."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from flexpredict.config import Settings
from flexpredict.report.runs import Run, read_run


@dataclass(frozen=True, slots=True)
class Cell:
    published: float
    own: float | None = None
    run: str | None = None
    task: str | None = None  # where several variants of a task would do, the one that was used

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
    rows = []
    for kind, model, *figures in table["rows"]:
        epochs = table.get("epochs")
        own = [
            run
            for run in known
            if _is_of(run.settings, kind, model) and epochs in (None, run.settings.epochs)
        ]
        cells = [
            _cell(figure, column, own) for figure, column in zip(figures, columns, strict=True)
        ]
        rows.append((kind, model, cells))
    titles = [column["title"] for column in columns]
    return PublishedTable(number, table["title"], table.get("note", ""), titles, rows)


@functools.cache
def _published() -> Mapping[str, Any]:
    text = (resources.files("flexpredict.report") / "published.yaml").read_text("utf-8")
    return dict(yaml.safe_load(text))


def _is_of(settings: Settings, kind: str, model: str) -> bool:
    """Whether a run is of this row: its settings are those that the row is about."""
    published = _published()
    if kind not in published["kinds"] or model not in published["models"]:
        return False  # other people's methods
    name, patch_size = published["models"][model]
    same = settings.model == name and settings.patch_size == patch_size
    wanted = published["kinds"][kind].items()
    return same and all(getattr(settings, key) in _some(value) for key, value in wanted)


def _cell(figure: float, column: Mapping[str, Any], runs: list[Run]) -> Cell:
    """The first evaluation, run by run, that is the column's."""
    for run in runs:
        for found in run.evaluations:
            wanted = {key: value for key, value in column.items() if key not in ("title", "key")}
            fits = all(found.get(key) in _some(value) for key, value in wanted.items())
            # What was asked for unlike the protocol is not the column's, but for other seeds.
            unlike = set(found.get("variant", {})) - {"seed", "draws"}
            usual = found.get("encoder") == "target" and not unlike
            if fits and usual and column["key"] in found["result"]:
                own = found["result"][column["key"]]
                return Cell(figure, own, str(run.path), found["task"])
    return Cell(figure)


def _some(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
