"""Folders that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out {out} exists and is not empty: choose another folder")


@contextmanager
def fresh_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all went well and vanishes otherwise."""
    check_empty(out)
    out = out.absolute()
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
