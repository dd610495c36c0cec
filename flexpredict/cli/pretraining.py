"""Commands that pretrain: pretrain, demo, recipes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import flexpredict
from flexpredict import config
from flexpredict.cli.shared import Device, Json, app, is_main, print_json
from flexpredict.train.loop import summary


@app.command()
def pretrain(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A folder, list, tar shards, FILE.npz, or `scenes`, the embedded ones."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run folder to write.")] = Path("run"),
    recipe: Annotated[str | None, typer.Option(help="A recipe: see `flexpredict recipes`.")] = None,
    model: Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, …")] = None,
    init: Annotated[
        Path | None, typer.Option(help="A run folder whose weights are the first ones.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, by its settings.")
    ] = False,
    track: Annotated[
        str | None, typer.Option(help="Also report to `tensorboard` or `wandb`.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Pretrain an encoder on unlabelled images.

    Example: `flexpredict pretrain photos/ --out run/ --model vit_small --set epochs=50`
    """
    values = config.parse_overrides(set_ or [])
    named = values.pop("data", None)
    data = str(named) if data is None and named is not None else data
    if model is not None:
        values["model"] = model
    if init is not None:
        values["init"] = str(init)
    result = flexpredict.pretrain(
        data, out, recipe=recipe, resume=resume, device=device, track=track, **values
    )
    if not is_main():
        return
    if as_json:
        print_json(summary(result))
    elif result.loss is None:
        print(f"{result.run} is finished: {result.steps} steps. Nothing was left to do.")
    else:
        print(
            f"{result.run}: {result.steps} steps, loss {result.loss:.4f}. "
            f"Load it with flexpredict.load({str(result.run)!r})."
        )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path("demo-run"),
    minutes: Annotated[
        float, typer.Option(min=0.01, max=10_000, help="About how long, on 2 cores.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="Another seed, another run.")] = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Pretrain with and without StoP on embedded scenes, probe, compare. No data needed.

    Example: `flexpredict demo --out demo-run/`
    """
    from flexpredict.demonstration import TEST_SCENES

    result = flexpredict.demo(out, minutes=minutes, seed=seed, device=device)
    if as_json:
        done = {"steps": result.steps, "seconds": round(result.seconds, 1)}
        print_json({**result.accuracies, **done, "report": str(result.report)})
        return
    _print_accuracies(result.accuracies)
    print(
        f"Ridge probes on frozen features, {TEST_SCENES:,} test scenes, {result.steps} steps of "
        f"pretraining, seed {seed}.\nOne seed, a very small model: the demo makes no claim about "
        f"StoP against deterministic positions.\nReport: {result.report}"
    )


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe to print.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, or print one.

    Example: `flexpredict recipes paper/stop-vit-b16`
    """
    if name is not None:
        settings = config.settings_from({}, recipe=name)
        if as_json:
            print_json(settings.model_dump(mode="json"))
        else:
            print(config.recipe_text(name.partition("@")[0]), end="")
        return
    listing = {recipe: list(config.recipe_variants(recipe)) for recipe in config.recipe_names()}
    if as_json:
        print_json(listing)
        return
    for recipe, variants in listing.items():
        print(recipe)
        for variant in variants:
            print(f"  {recipe}@{variant}")


def _print_accuracies(accuracies: Mapping[str, Mapping[str, float]]) -> None:
    from flexpredict.report.demo_page import ROW_NAMES, TASK_NAMES

    table = Table()
    table.add_column("test accuracy, %")
    tasks = list(next(iter(accuracies.values())))
    for task in tasks:
        table.add_column(TASK_NAMES[task], justify="right")
    table.add_column("mean", justify="right")
    for row, values in accuracies.items():
        numbers = [values[task] for task in tasks]
        mean = sum(numbers) / len(numbers)
        table.add_row(ROW_NAMES[row], *(f"{number:.1f}" for number in [*numbers, mean]))
    Console().print(table)
