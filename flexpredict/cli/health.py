"""Commands that say how a run is: doctor."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import flexpredict
from flexpredict.cli.shared import Json, app, print_json
from flexpredict.health.reference import Reading


@app.command()
def doctor(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")],
    as_json: Json = False,
) -> None:
    """Say whether a run is well, by what evidence, and what usually helps.

    Example: `flexpredict doctor run/`
    """
    found, gauges, healthy = flexpredict.doctor(run)
    if as_json:
        readings = {one.gauge: one._asdict() for one in gauges}
        print_json({"run": str(run), **asdict(found), "gauges": readings, "healthy": healthy})
        return
    print(f"{run}: " + "\n  ".join(found.sentences))
    if gauges:
        _print_gauges(gauges)
    if healthy is not None:
        print(f"Healthy runs: {healthy}. Other images and lengths give other numbers.")
    elif gauges:
        print(
            "No healthy runs are known of this objective, model, patch, image size and positions."
        )


def _print_gauges(gauges: Sequence[Reading]) -> None:
    table = Table()
    known = any(one.healthy is not None for one in gauges)
    for name in ("gauge", "at first", "now", *(["healthy runs by now"] if known else [])):
        table.add_column(name, justify="left" if name == "gauge" else "right")
    for one in gauges:
        seen = [] if one.healthy is None else [f"{x:.3g}" for x in one.healthy]
        healthy = [" to ".join(dict.fromkeys(seen))] if known else []  # of one run it is one number
        table.add_row(one.gauge, f"{one.first:.3g}", f"{one.now:.3g}", *healthy)
    Console().print(table)
