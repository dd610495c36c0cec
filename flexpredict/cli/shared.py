"""What all commands share: the app, common options, ways to print."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flexpredict.version import VERSION

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Pretrain Vision Transformers with StoP and I-JEPA, and evaluate them.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"flexpredict {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """What comes before a command."""


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; by default a GPU if there is one.")]


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value))


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def check_new_file(option: str, path: Path, suffix: str, what: str) -> None:
    """Before any work: the file can be written, and nothing is in its place."""
    if path.suffix.lower() != suffix:
        raise ValueError(f"{option} {path}: {what} written to a {suffix} file")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")
    if path.exists():
        raise ValueError(f"{option} {path} exists already: choose another name, or remove it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option} {path}: the folder {path.parent} cannot be written")
