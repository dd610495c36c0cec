"""Commands on data: data inspect, data index, data shard."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flexpredict.cli.shared import Json, app, check_new_file, print_json
from flexpredict.data.doubts import doubts
from flexpredict.data.inspect import Inspection, contact_sheet, inspect, write_sheet
from flexpredict.data.shard import PER_SHARD, shard
from flexpredict.data.sources import Source, open_source
from flexpredict.progress import Tally

data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at images, and make them faster to open and to read.",
)
app.add_typer(data, name="data")

Spec = Annotated[
    str,
    typer.Argument(
        help="A folder, list, FILE.npz, tar shards, `scenes`, `tiny-imagenet`, or a layout's root."
    ),
]
Layout = Annotated[
    str | None, typer.Option(help="The published layout of the data: imagenet, cifar10, …")
]
Split = Annotated[str | None, typer.Option(help="train or test, with --layout.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes; by default all cores where that pays.")
]


@data.command("inspect")
def inspect_command(
    spec: Spec,
    layout: Layout = None,
    split: Split = None,
    channels: Annotated[int, typer.Option(min=1, help="What to read images as.")] = 3,
    sheet: Annotated[
        Path | None, typer.Option(help="A contact sheet to write, a .png file.")
    ] = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Decode every image and tell what there is: counts, sizes, broken files, mean and std.

    Example: `flexpredict data inspect photos/ --sheet sheet.png`
    """
    if sheet is not None:
        check_new_file("--sheet", sheet, ".png", "the contact sheet is")
    source = _open(spec, layout, split)
    found = inspect(source, channels=channels, workers=workers, progress=Tally("images"))
    doubted = doubts(source, channels)
    if sheet is not None:
        write_sheet(contact_sheet(source, channels=channels), sheet)
    if as_json:
        more = {"doubts": doubted, "sheet": sheet and str(sheet)}
        print_json({"source": spec} | asdict(found) | more)
        return
    _print_inspection(spec, found)
    for sentence in doubted:
        print(f"warning: {sentence}")
    if sheet is not None:
        print(f"Contact sheet: {sheet}")


@data.command("index")
def index_command(
    folder: Annotated[Path, typer.Argument(help="A folder of images of any depth.")],
    as_json: Json = False,
) -> None:
    """Index a folder of images, so that it opens at once the next time.

    Example: `flexpredict data index photos/`
    """
    from flexpredict.data.sources.folder import index_folder

    found = index_folder(folder, progress=Tally("images"))
    found.verify()
    if as_json:
        print_json({"folder": str(folder), "images": len(found), "classes": len(found.classes)})
    else:
        print(f"{folder}: {len(found):,} images are indexed, and open at once the next time.")


@data.command("shard")
def shard_command(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="The folder for the shards, a new one or one begun.")],
    layout: Layout = None,
    split: Split = None,
    per_shard: Annotated[int, typer.Option(min=1, help="Images in each.")] = PER_SHARD,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Write images to tar shards in the WebDataset convention, verified; run it again to go on.

    Example: `flexpredict data shard photos/ --out shards/`
    """
    source = _open(spec, layout, split)
    made = shard(source, out, per_shard=per_shard, workers=workers, progress=Tally("images"))
    if as_json:
        print_json(asdict(made) | {"out": str(made.out)})
        return
    kept = f", {made.kept} of them kept from before" if made.kept else ""
    shards = f"{made.shards:,} shard{'s' * (made.shards != 1)}"
    print(f"{made.out}: {made.images:,} images in {shards}{kept}, {_size_in_words(made.bytes)}")


def _open(spec: str, layout: str | None, split: str | None) -> Source:
    return open_source(spec, layout=layout, split=split, progress=Tally("scenes"))


def _print_inspection(spec: str, found: Inspection) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _rows(found).items():
        table.add_row(name, value)
    console = Console(markup=False, highlight=False)
    console.print(_printable(spec))
    console.print(table)
    for one in found.broken:
        console.print(f"  {_printable(one.name)}: {_printable(one.reason)}", soft_wrap=True)


def _rows(found: Inspection) -> dict[str, str]:
    rows = {"images": f"{found.images:,}, {_size_in_words(found.bytes)}"}
    if found.labelled:
        rows["classes"] = (
            f"{found.classes:,} of {found.fewest_per_class:,} to {found.most_per_class:,} images"
        )
    else:
        rows["classes"] = "not labelled"
    rows["formats"] = ", ".join(f"{kind} {count:,}" for kind, count in found.formats.items()) or "-"
    if found.frequent:
        sizes = (found.smallest, found.median, found.largest)
        rows["smallest, median, largest"] = ", ".join(map(_pixels, sizes))
        frequent = (f"{_pixels(size)} {count:,}" for size, count in found.frequent)
        rows["most frequent sizes"] = ", ".join(frequent)
    if found.mean is not None and found.std is not None:
        rows["mean"] = _setting("mean", found.mean)
        rows["std"] = _setting("std", found.std)
    rows["broken"] = f"{len(found.broken):,}" if found.broken else "none"
    return rows


def _pixels(size: Any) -> str:
    return f"{size[0]}×{size[1]}"


def _setting(name: str, values: list[float]) -> str:
    """As the command line takes it."""
    return f"--set {name}='[{', '.join(f'{value:.4f}' for value in values)}]'"


def _size_in_words(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _printable(text: str) -> str:
    """File names may hold anything, commands to the terminal too."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
