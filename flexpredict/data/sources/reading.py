"""Reading what published layouts put beside their images: lists, JSON, folders within folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def folder_with(root: Path, wanted: str, *inner: str) -> Path:
    """The folder that holds `wanted`: `root`, or one of the folders archives unpack to in it."""
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder, expected the folder that the data unpacks to")
    for folder in (root, *(root / name for name in inner)):
        if (folder / wanted).exists():
            return folder
    places = " or ".join(("it", *(f"{name}/ in it" for name in inner)))
    raise ValueError(f"{root} lacks {wanted}: expected it in {places}, name the unpacked folder")


def must_hold(root: Path, path: str) -> None:
    """Look for one image before hours of work: an archive is often left packed or elsewhere."""
    if not (root / path).is_file():
        raise ValueError(f"{root / path} is listed but not there: unpack the images to that place")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: expected the list as it was published") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from None
    if not lines:
        raise ValueError(f"{path} is empty: expected the list as it was published")
    return lines


def read_json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """The object in a JSON file; `hook` sees every object in it and may make it smaller."""
    try:
        with path.open(encoding="utf-8") as file:
            value = json.load(file, object_hook=hook)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: expected the file as it was published") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object: expected the file as it was published")
    return value
