"""Commands for studies: study, and what its processes run."""

import json
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

import flexpredict
from flexpredict.api.studying import make_trial
from flexpredict.cli.shared import Device, Json, app, print_json

_LOOK_SECONDS = 0.5


@app.command()
def study(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Studies that come with the package, or YAML files."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Images to pretrain on.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for runs, results and tables.")] = Path(
        "study"
    ),
    seeds: Annotated[str | None, typer.Option(help="As 0,1,2: others than the study's.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 1,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run variants × seeds of a recipe, evaluate each, compare within pairs. Done work is skipped.

    Without a name, lists the studies. Several share the runs that more than one asks for.

    Example: `flexpredict study table6 --data tiny-imagenet:train --out table6/ --jobs 4`
    """
    from flexpredict.study.plan import read_study, study_names
    from flexpredict.study.run import SUMMARY

    if not names:
        listing = {one: read_study(one).title for one in study_names()}
        if as_json:
            print_json(listing)
        for one, title in [] if as_json else listing.items():
            print(f"{one:20} {title}")
        return
    lines = flexpredict.run_study(
        names, out, data=data, seeds=_numbers(seeds), jobs=jobs, device=device
    )
    folders = [out] if len(names) == 1 else [out / Path(name).stem for name in names]
    if as_json:
        found = [json.loads((folder / SUMMARY).read_text("utf-8")) for folder in folders]
        summary = found[0] if len(names) == 1 else dict(zip(names, found, strict=True))
        print_json({"out": str(out), "lines": lines, "summary": summary})
        return
    for folder in folders:
        _print(folder)


def _print(folder: Path) -> None:
    """Tables as they are written, or a table for each number where they are too wide for that."""
    from flexpredict.study.run import SUMMARY, TABLE
    from flexpredict.study.tables import difference_text, mean_text

    console, page = Console(), (folder / TABLE).read_text("utf-8")
    if all(len(row) <= console.width for row in page.splitlines() if row.startswith("|")):
        console.print(Markdown(page))
        return
    console.print(Markdown(page.partition("\n|")[0]))
    found = json.loads((folder / SUMMARY).read_text("utf-8"))
    for column in dict.fromkeys(name for cells in found.values() for name in cells):
        table = Table(box=SIMPLE_HEAD)
        table.add_column(column)
        for name in ("seeds", "mean ± deviation", "difference [95 %]"):
            table.add_column(name, justify="right", no_wrap=True)
        for variant, cells in found.items():
            if (cell := cells.get(column)) is not None:
                table.add_row(variant, str(cell["seeds"]), mean_text(cell), difference_text(cell))
        console.print(table)
    if sentence := page.rpartition("|\n")[2].strip():  # on runs that are not healthy
        print(sentence)
    print(f"side by side: {folder / TABLE}")


@app.command(hidden=True)
def trials(
    device: Device = None,
    parent: Annotated[int | None, typer.Option(help="The process to leave with.")] = None,
) -> None:
    """Make trials as they are asked for, one JSON object a line; answers with the same.

    Example: `flexpredict trials --device cuda < orders.jsonl`
    """
    if parent is not None:
        threading.Thread(target=_leave_with, args=[parent], daemon=True).start()
    answers = sys.stdout
    with redirect_stdout(sys.stderr):  # what a library prints is no answer
        for line in sys.stdin:
            try:
                answer = make_trial(json.loads(line), device)
            except (ValueError, FloatingPointError, RuntimeError, OSError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)


def _leave_with(parent: int) -> None:
    """Stops what is under way, as the signal that saves runs does, when a process is gone.

    Not where nothing would be saved, nor where a signal was noted already, of which a second one
    would kill: there is an end to orders then, and so to this process.
    """
    while os.getppid() == parent or not callable(signal.getsignal(signal.SIGTERM)):
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes numbers as 0,1,2, not {text!r}") from None
