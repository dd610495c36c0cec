"""All figures of some runs: drawn, and written with the numbers behind them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flexpredict.data.sources import Progress
from flexpredict.files import write_bytes, write_text
from flexpredict.report.drawn import Drawn
from flexpredict.report.figures.style import to_png, to_svg
from flexpredict.report.images import Images
from flexpredict.report.of_images import FROM_IMAGES
from flexpredict.report.of_runs import FROM_RUNS
from flexpredict.report.runs import NotDrawn, Run
from flexpredict.version import VERSION

NAMES = [*FROM_RUNS, *FROM_IMAGES]
FORMATS = ("png", "svg")
NUMBERS = "figures.json"


@dataclass(frozen=True, slots=True)
class Gallery:
    drawn: Mapping[str, Drawn]
    skipped: Mapping[str, str]  # figure -> why it was not drawn


def draw_figures(
    runs: Sequence[Run],
    images: Images | str,
    only: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Gallery:
    """The figures that are asked for, or all that these runs allow.

    images: a string says why there are none.
    """
    for name in only or ():
        if name not in NAMES:
            raise ValueError(f"there is no figure {name!r}: choose from {', '.join(NAMES)}")
    drawn, skipped = {}, {}
    for done, name in enumerate(only or NAMES, start=1):
        try:
            if name in FROM_RUNS:
                drawn[name] = FROM_RUNS[name](runs)
            elif isinstance(images, Images):
                drawn[name] = FROM_IMAGES[name](runs, images)
            else:
                raise NotDrawn(f"it needs images, and {images}")
        except NotDrawn as error:
            if only:
                raise ValueError(f"{name} cannot be drawn: {error}") from None
            skipped[name] = str(error)
        if progress is not None:
            progress(done, len(only or NAMES))
    return Gallery(drawn, skipped)


def check_folder(out: Path, formats: Sequence[str]) -> None:
    """Refuses a folder that holds something other than figures."""
    for kind in formats:
        if kind not in FORMATS:
            raise ValueError(f"figures are written as {' and '.join(FORMATS)}, not as {kind!r}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: choose another --out")
    if out.exists() and any(out.iterdir()) and not _is_ours(out / NUMBERS):
        raise ValueError(f"{out} holds something other than figures: choose another --out")
    parent = next(folder for folder in [out, *out.absolute().parents] if folder.exists())
    if not os.access(parent, os.W_OK):
        raise ValueError(f"{out} cannot be written: choose another --out")


def _is_ours(numbers: Path) -> bool:
    try:
        return isinstance(json.loads(numbers.read_text("utf-8"))["figures"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_figures(
    gallery: Gallery, runs: Sequence[Run], out: Path, formats: Sequence[str] = FORMATS
) -> dict[str, list[Path]]:
    """Each figure in each format, and figures.json with all numbers; gives the files."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / NUMBERS, _numbers(gallery, runs, out / NUMBERS))
    files: dict[str, list[Path]] = {}
    for name, one in gallery.drawn.items():
        for kind in formats:
            path = out / f"{name}.{kind}"
            data = to_png(one.figure) if kind == "png" else to_svg(one.figure).encode()
            write_bytes(path, data)
            files.setdefault(name, []).append(path)
    return files


def _numbers(gallery: Gallery, runs: Sequence[Run], path: Path) -> str:
    """What is behind the figures; those that were drawn into the folder before keep theirs."""
    before = json.loads(path.read_text("utf-8"))["figures"] if path.exists() else {}
    about = {
        run.name: {
            "path": str(run.path),
            "settings": run.settings.digest(),
            "step": run.metrics[-1]["step"],
        }
        for run in runs
    }
    drawn = {
        name: {"title": one.title, "caption": one.caption, "runs": about, "numbers": one.numbers}
        for name, one in gallery.drawn.items()
    }
    found = {"version": VERSION, "figures": before | drawn, "skipped": gallery.skipped}
    return json.dumps(found, indent=1, allow_nan=False) + "\n"
