"""Commands that show: figures, report, table."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import flexpredict
from flexpredict.cli.printing import print_table
from flexpredict.cli.shared import Device, Json, app, print_json
from flexpredict.report.table import paper_table, table_numbers

Runs = Annotated[list[Path], typer.Argument(help="Run folders, one or more.")]
Data = Annotated[
    str | None,
    typer.Option(help="Images for the figures that need some; by default the run's own."),
]


@app.command()
def figures(
    runs: Runs,
    data: Data = None,
    only: Annotated[
        str | None, typer.Option(help="Names, as fig5,fig6; by default all that can be drawn.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("figures"),
    format_: Annotated[str, typer.Option("--format", help="png, svg or both.")] = "png,svg",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Draw Figures 3 to 6 of the paper, what A has learnt, masks, PCA, neighbours, attention.

    The numbers behind them are in figures.json.

    Example: `flexpredict figures run-ijepa/ run-stop/ --only fig5,fig6 --out figures/`
    """
    formats = _names(format_)
    if not formats:
        raise ValueError("--format names nothing: choose png, svg or png,svg")
    found = flexpredict.figures(
        runs, out, data=data, only=_names(only), formats=formats, device=device
    )
    if as_json:
        print_json({"out": str(out), "figures": list(found.drawn), "skipped": dict(found.skipped)})
        return
    for reason in dict.fromkeys(found.skipped.values()):
        names = [name for name, why in found.skipped.items() if why == reason]
        print(f"not drawn: {', '.join(names)}: {reason}")
    print(f"{out}: {', '.join(found.drawn)}, and figures.json with their numbers")


@app.command()
def report(
    runs: Runs,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option(help="The .html file; by default report.html in a single run.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about runs, side by side: it opens from disk and prints.

    Example: `flexpredict report run-ijepa/ run-stop/ --out report.html`
    """
    path = flexpredict.write_report(runs, out, data=data, device=device)
    if as_json:
        print_json({"report": str(path), "runs": [str(run) for run in runs]})
    else:
        print(f"Report: {path}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def table(
    number: Annotated[str | None, typer.Argument(help="1 to 8, or 13 to 16.")] = None,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders with evaluations.")] = None,
    as_json: Json = False,
) -> None:
    """Print a table of the paper, with your own figures beside the published ones.

    Example: `flexpredict table 1 run-ijepa/ run-stop/`
    """
    if number is None:
        numbers = table_numbers()
        if as_json:
            print_json({"tables": numbers})
            return
        for one in numbers:
            print(f"Table {one}: {paper_table(one).title}")
        return
    found = paper_table(number, runs or ())
    if as_json:
        rows = [
            {"kind": kind, "model": model, "cells": [asdict(cell) for cell in cells]}
            for kind, model, cells in found.rows
        ]
        print_json({
            "table": number, "title": found.title, "columns": found.columns, "rows": rows,
            "remarks": found.remarks,
        })  # fmt: skip
        return
    print_table(found)
    shown = {cell.run for _, _, cells in found.rows for cell in cells}
    for run in runs or ():
        if str(run) not in shown:
            print(
                f"{run} has no evaluation that this table shows: docs/evaluation.md has its tasks"
            )
