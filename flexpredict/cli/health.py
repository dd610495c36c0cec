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
    runs: Annotated[list[Path], typer.Argument(help="Run folders, finished or not.")],
    as_json: Json = False,
) -> None:
    """Say whether a run is well, by what evidence, and what usually helps.

    Of several runs it says the words alone, without their gauges.

    Example: `flexpredict doctor run/`
    """
    found, failed = {}, {}
    for run in runs:
        try:
            found[run] = flexpredict.doctor(run)
        except ValueError as error:
            failed[run] = str(error)
    if as_json:
        said = [
            {"run": str(run), **asdict(diagnosis), "healthy": healthy,
             "gauges": {one.gauge: one._asdict() for one in gauges}}
            for run, (diagnosis, gauges, healthy) in found.items()
        ]  # fmt: skip
        said += [{"run": str(run), "error": sentence} for run, sentence in failed.items()]
        if len(runs) > 1 or not failed:
            print_json(said[0] if len(runs) == 1 else {"runs": said})
    else:
        for run, (diagnosis, gauges, healthy) in found.items():
            print(f"{run}: " + "\n  ".join(diagnosis.sentences))
            if len(runs) == 1 and gauges:
                _print_gauges(gauges, healthy)
    if failed:  # the others have been judged
        raise ValueError("; ".join(failed.values()))


def _print_gauges(gauges: Sequence[Reading], healthy_runs: str | None) -> None:
    table = Table()
    known = any(one.healthy is not None for one in gauges)
    for name in ("gauge", "at first", "now", *(["healthy runs by now"] if known else [])):
        table.add_column(name, justify="left" if name == "gauge" else "right")
    for one in gauges:
        seen = [] if one.healthy is None else [f"{x:.3g}" for x in one.healthy]
        healthy = [" to ".join(dict.fromkeys(seen))] if known else []  # of one run it is one number
        now = "not finite" if one.now is None else f"{one.now:.3g}"
        table.add_row(one.gauge, f"{one.first:.3g}", now, *healthy)
    Console().print(table)
    if healthy_runs is not None:
        print(f"Healthy runs: {healthy_runs}. Other images and lengths give other numbers.")
    else:
        print(
            "No healthy runs are known with its objective, model, patch size, image size and "
            "positions."
        )
