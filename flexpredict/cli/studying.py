"""Commands for studies: study, and what its processes run."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

import flexpredict
from flexpredict.api.studying import make_trial
from flexpredict.cli.shared import Device, Json, app, print_json


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
    from flexpredict.study.run import SUMMARY, TABLE

    if not names:
        listing = {one: read_study(one).title for one in study_names()}
        if as_json:
            print_json(listing)
        for one, title in [] if as_json else listing.items():
            print(f"{one:16} {title}")
        return
    lines = flexpredict.run_study(
        names, out, data=data, seeds=_numbers(seeds), jobs=jobs, device=device
    )
    folders = [out] if len(names) == 1 else [out / Path(name).stem for name in names]
    if as_json:
        found = [json.loads((folder / SUMMARY).read_text()) for folder in folders]
        summary = found[0] if len(names) == 1 else dict(zip(names, found, strict=True))
        print_json({"out": str(out), "lines": lines, "summary": summary})
        return
    for folder in folders:
        Console().print(Markdown((folder / TABLE).read_text()))


@app.command(hidden=True)
def trials(device: Device = None) -> None:
    """Make trials as they are asked for, one JSON object a line; answers with the same.

    Example: `flexpredict trials --device cuda < orders.jsonl`
    """
    for line in sys.stdin:
        try:
            answer = make_trial(json.loads(line), device)
        except (ValueError, FloatingPointError, RuntimeError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes numbers as 0,1,2, not {text!r}") from None
