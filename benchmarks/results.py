"""Fills the tables of the results pages from results/*/results.jsonl, and draws curves.

    python benchmarks/results.py

The pages are docs/results.md and docs/results/*.md.

A table stands between `<!-- NAME BASELINE: column, column -->` and `<!-- end -->`, NAME being one
folder of results/ or several, as `headline+pixels`. With `-` for a baseline there are no
differences, with `pairs` those of the study; pairs that are written out, as `stop − sincos; stop 1
− sincos 1`, are shown alone. Without columns all are shown; names with commas are parted by `; `.
Curves are of results/*/runs.
"""

import re
from pathlib import Path
from typing import Any

from flexpredict.report.figures.curves import curves
from flexpredict.report.figures.style import to_png
from flexpredict.run_folder import read_metrics
from flexpredict.study.plan import read_study
from flexpredict.study.run import read_results
from flexpredict.study.tables import Baseline, markdown, markdown_differences

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]
LENGTH = ROOT / "docs" / "images" / "length.png"
RUNS = {"40 epochs": "headline/runs/sincos-seed22", "200 epochs": "longer/runs/8x8-seed20"}
SHOWN = {"fixed_loss": "loss on fixed images", "rankme_target": "rank", "norm_A": "norm of A"}
TABLE = re.compile(r"<!-- ([\w+-]+) ([^:>]+?)(?:: ([^>]+))? -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    return TABLE.sub(_table, text)


def _table(found: re.Match[str]) -> str:
    name, baseline, columns = found.groups()
    lines = []
    for one in name.split("+"):
        lines += (found_there := read_results(ROOT / "results" / one))
        if not found_there:
            raise ValueError(f"there are no lines in results/{one}")
    if columns is not None:
        asked = columns.split("; " if "; " in columns else ", ")
        lines = [line | {"found": _only(line, asked)} for line in lines]
    if " − " in baseline:
        pairs = dict(pair.split(" − ") for pair in baseline.split("; "))
        table = markdown_differences(lines, pairs)
    else:
        against: Baseline = None if baseline == "-" else baseline
        table = markdown(lines, read_study(name).baseline if baseline == "pairs" else against)
    head = found.group(0).partition("\n")[0]
    return f"{head}\n{table}<!-- end -->"


def _only(line: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    missing = [column for column in columns if column not in line["found"]]
    if missing:
        raise ValueError(f"{line['study']} has no column {missing[0]!r}")
    return {column: line["found"][column] for column in columns}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")
    runs = {name: read_metrics(ROOT / "results" / run) for name, run in RUNS.items()}
    LENGTH.write_bytes(to_png(curves(runs, SHOWN)))
