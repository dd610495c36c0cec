"""Commands that show: figures, report."""

from pathlib import Path
from typing import Annotated

import typer

import flexpredict
from flexpredict.cli.shared import Device, Json, app, print_json

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
    found = flexpredict.figures(
        runs, out, data=data, only=_names(only), formats=_names(format_) or (), device=device
    )
    if as_json:
        print_json({"out": str(out), "figures": list(found.drawn), "skipped": dict(found.skipped)})
        return
    for name, reason in found.skipped.items():
        print(f"{name} was not drawn: {reason}")
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
