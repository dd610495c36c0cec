"""The command that measures: bench."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flexpredict import config
from flexpredict.bench import MOST, Bench
from flexpredict.bench import bench as measure
from flexpredict.cli.shared import Device, Json, app, print_json
from flexpredict.engine.distributed import pick_device
from flexpredict.train.forecast import in_words, size_in_words

_PIECES = {
    "target_encoder": "target encoder",
    "forward": "context encoder, predictor",
    "backward": "backward",
    "update": "optimiser and moving average",
}


@app.command()
def bench(
    recipe: Annotated[str | None, typer.Option(help="A recipe: see `flexpredict recipes`.")] = None,
    model: Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, …")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="About how long to measure, compiling not counted.")
    ] = 10,
    images: Annotated[
        int | None, typer.Option(min=1, help="How many there will be, for the time of epochs.")
    ] = None,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Find how many images fit at once: the batch, halved or doubled."
        ),
    ] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a recipe on this machine: rate, memory, time. No data needed.

    Example: `flexpredict bench --recipe small/stop-vit-t8-64 --images 100000`
    """
    values = config.parse_overrides(set_ or [])
    if model is not None:
        values["model"] = model
    settings = config.settings_from(values, recipe=recipe)
    found = measure(settings, pick_device(device), seconds=seconds, images=images, fit=fit)
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)


def _print(found: Bench) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, value in _rows(found).items():
        table.add_row(name, value)
    ways = [found.device, found.dtype]
    ways += ["compiled"] if found.compiled else []
    ways += ["CUDA graph"] if found.graph else []
    console = Console(markup=False, highlight=False)
    console.print(f"{found.model}, {', '.join(ways)}", soft_wrap=True)
    console.print(table)


def _rows(found: Bench) -> dict[str, str]:
    parts = found.batch_size // found.at_once
    digits = 0 if found.images_per_second >= 100 else 1
    rows = {
        "images a second": f"{found.images_per_second:,.{digits}f}",
        "a step": f"{found.step_ms:,.1f} ms, {found.batch_size:,} images",
    }
    if parts > 1:
        rows["a step"] += f", {found.at_once:,} at once"
    for key, name in _PIECES.items():
        rows[f"  {name}"] = f"{found.breakdown_ms[key]:,.1f} ms"
    rows["  (one by one" + (", without the graph" if found.graph else "") + ")"] = (
        f"{sum(found.breakdown_ms.values()):,.1f} ms"
    )
    rows["its masks, on one core"] = f"{found.masks_ms:,.1f} ms"
    lengths = f"{found.context:g} context patches, blocks of {found.targets:g}"
    rows["products"] = f"{found.gflop_per_image:,.3g} GFLOP an image, {lengths}"
    rows["share of the matmul peak"] = (
        f"{100 * found.share_of_matmul:.0f} % of {found.matmul_tflops:,.3g} TFLOP/s"
    )
    rows["memory"] = f"estimated {size_in_words(found.estimated_memory_gib * 2**30)}"
    if found.memory_gib is not None:
        rows["memory"] = f"{size_in_words(found.memory_gib * 2**30)}, {rows['memory']}"
    if found.fits is not None:
        count = found.fits["at_once"]
        rows["fits at once"] = (
            f"{count:,} images{' or more' if 2 * count > MOST else ''}: "
            f"batch_size={found.fits['batch_size']} accumulate={found.fits['accumulate']}"
        )
    rows["the whole schedule"] = "in epochs: say how many --images there are"
    if found.schedule_seconds is not None:
        rows["the whole schedule"] = (
            f"{found.schedule_steps:,} steps, {in_words(found.schedule_seconds)}"
        )
    return rows
