"""The page of one or more runs: settings, curves, gauges, evaluations, figures."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from flexpredict.files import write_text
from flexpredict.report import evaluations
from flexpredict.report.drawn import Drawn, styles_of
from flexpredict.report.figures.curves import curve, mean_width, profile
from flexpredict.report.gallery import Gallery
from flexpredict.report.judged import Healthy
from flexpredict.report.of_images import FROM_IMAGES
from flexpredict.report.page import (
    GENERATOR,
    folded,
    number,
    page,
    picture,
    swatch,
    table,
    vector,
)
from flexpredict.report.runs import Run, differing
from flexpredict.run_folder import earlier_evaluations

_PLACES = ("step", "epoch")  # where a line of metrics is, not what it found
_SCHEDULE = (
    "lr", "weight_decay", "ema", "images_per_second", "data_wait", "memory_gib", "seconds"
)  # fmt: skip


def check_page(path: Path) -> None:
    """Refuses to overwrite anything but a page of ours."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {path}: the report is written as an .html file")
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: there is no folder {path.parent}")
    if path.is_dir() or (
        path.exists() and GENERATOR not in path.read_text("utf-8", errors="replace")
    ):
        raise ValueError(f"--out {path} exists and is no report of ours: choose another name")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"the folder {path.parent} cannot be written: name another file by --out")


def write_run_page(
    path: Path,
    runs: Sequence[Run],
    gallery: Gallery,
    *,
    healthy: Healthy | None = None,
    verdicts: Mapping[str, str] | None = None,
) -> None:
    """healthy: what such runs showed; verdicts: run -> what the doctor says."""
    verdicts = verdicts or {}
    title = f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs side by side"
    parts = {
        "Overview": _overview(runs),
        "Health": _health(runs, verdicts),
        "Curves": _curves(runs, healthy),
        "Evaluations": _evaluations(runs),
        "Figures": _figures(gallery),
        "Settings": _settings(runs),
    }
    parts = {name: content for name, content in parts.items() if content}
    links = " ".join(f'<a href="#about-{name.lower()}">{name}</a>' for name in parts)
    sections = [f"<nav>{links}</nav>"]
    for name, content in parts.items():
        sections += [f'<h2 id="about-{name.lower()}">{name}</h2>', content]
    write_text(path, page(title, sections))


def _overview(runs: Sequence[Run]) -> str:
    rows: dict[str, list[str]] = {
        "state": [_state(run) for run in runs],
        "model": [escape(_model(run)) for run in runs],
        "positions": [escape(_positions(run)) for run in runs],
        "seed": [str(run.settings.seed) for run in runs],
        "images": [escape(str(run.settings.data or "not recorded")) for run in runs],
        "batch size": [number(run.settings.batch_size, ",") for run in runs],
        "last loss": [number(run.metrics[-1]["loss"]) for run in runs],
    }
    marked = [name for name, cells in rows.items() if len(set(cells)) > 1]
    note = "<p class=note>≠ and a tint mark rows in which runs differ.</p>" if marked else ""
    return table(_head(runs), rows, name="runs", marked=marked) + note


def _state(run: Run) -> str:
    step = f"{run.metrics[-1]['step']:,}"
    if run.finished:
        return f"finished, {step} steps"
    return f"unfinished: step {step} of {run.steps:,}" if run.steps else f"unfinished: step {step}"


def _model(run: Run) -> str:
    s = run.settings
    size = s.image_size if isinstance(s.image_size, int) else "×".join(map(str, s.image_size))
    return f"{s.objective}, {s.model}, patch {s.patch_size} of {size} px"


def _positions(run: Run) -> str:
    positions = run.settings.positions
    return f"{positions}, noise_std {run.noise_std:g}" if run.settings.stochastic else positions


def _health(runs: Sequence[Run], verdicts: Mapping[str, str]) -> str:
    said = [(run.name, verdicts[run.name]) for run in runs if run.name in verdicts]
    return "".join(f"<p><strong>{escape(name)}</strong>: {escape(text)}</p>" for name, text in said)


def _curves(runs: Sequence[Run], healthy: Healthy | None) -> str:
    bands = healthy.bands if healthy else {}
    styles = styles_of(runs)
    legend = "".join(f"<li>{swatch(styles[run.name])}{escape(run.name)}</li>" for run in runs)
    keys = list(dict.fromkeys(key for run in runs for line in run.metrics for key in line))
    lists = [key for key in keys if isinstance(_last(runs, key), list)]
    keys = [key for key in keys if key not in lists]
    gauges = [key for key in keys if key not in (*_PLACES, *_SCHEDULE)]
    lines = {run.name: run.metrics for run in runs}
    smooth = any(mean_width(len(run.metrics)) > 1 for run in runs)

    def panels(names: Sequence[str]) -> str:
        drawn = []
        for key in names:
            figure = curve(lines, key, smooth=True, styles=styles, band=bands.get(key))
            drawn.append(vector(figure, "", alt=f"{key} over steps"))
        return f"<div class=panels>{''.join(drawn)}</div>"

    shapes = [
        vector(profile(lines, key, styles=styles), "", alt=f"{key} at the end") for key in lists
    ]
    values = {key: [number(_last([run], key)) for run in runs] for key in keys}
    about = "Pale lines are what was logged, strong ones running means. " if smooth else ""
    if healthy and set(bands) & set(gauges):
        about += (
            f"The grey band is what healthy runs showed, at the same share of their steps: "
            f"{healthy.words}."
        )
    return (
        f"<ul class=legend>{legend}</ul>{panels(gauges)}<p class=note>{escape(about)}</p>"
        + (f"<div class=panels>{''.join(shapes)}</div>" if shapes else "")
        + "<h3>Last values</h3>"
        + table(_head(runs), values, name="gauges")
        + folded("Schedule and speed", panels([key for key in keys if key in _SCHEDULE]))
    )


def _last(runs: Sequence[Run], key: str) -> Any:
    """The last value that any of these runs has logged."""
    lines = (line for run in runs for line in reversed(run.metrics))
    return next((line[key] for line in lines if line.get(key) is not None), None)


def _evaluations(runs: Sequence[Run]) -> str:
    rows = {}
    for label, found in evaluations.by_label(runs).items():
        scores = [evaluations.score(found[run.name]) if run.name in found else None for run in runs]
        stds = [found.get(run.name, {"result": {}})["result"].get("std") for run in runs]
        rows[label] = _scored(scores, stds)
        more = [evaluations.others(found[run.name]) if run.name in found else {} for run in runs]
        for name in dict.fromkeys(name for some in more for name in some):
            rows[f"{label}: {name}"] = _scored([some.get(name) for some in more])
    older = sum(earlier_evaluations(run.path) for run in runs)
    before = f"{older} of earlier weights are in evaluations/earlier. " if older else ""
    if not rows:
        return (
            f"<p>Nothing was evaluated yet, of these weights: <code>flexpredict knn</code> takes "
            f"seconds. {before}</p>"
        )
    note = "Percent on the test set, accuracy, J&F or IoU; ± is the deviation over draws of the "
    note += f"labels. {before}"
    if len(runs) > 1:
        note += f" In brackets: the difference from {runs[0].name}."
    return table(_head(runs), rows, name="evaluations") + f"<p class=note>{escape(note)}</p>"


def _scored(scores: Sequence[float | None], stds: Sequence[float | None] = ()) -> list[str]:
    """A row: the scores of all runs, and how far each is from the first one's."""
    cells = []
    for place, score in enumerate(scores):
        shown = number(score, ".1f")
        if score is not None and stds and stds[place] is not None:
            shown += f" ± {number(stds[place], '.1f')}"
        if place and score is not None and scores[0] is not None:
            shown += f" <small>({score - scores[0]:+.1f})</small>"
        cells.append(shown)
    return cells


def _figures(gallery: Gallery) -> str:
    shown = []
    for name, one in gallery.drawn.items():
        draw = picture if name in FROM_IMAGES else vector
        shown.append(f'<h3 id="{name}">{escape(one.title)}</h3>')
        shown.append(draw(one.figure, one.caption, alt=one.title))
        shown += _quoted(name, one)
    missing = "".join(
        f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in gallery.skipped.items()
    )
    return "".join(shown) + (f"<h3>Not drawn</h3><ul>{missing}</ul>" if missing else "")


def _quoted(name: str, one: Drawn) -> list[str]:
    found = []
    if one.table:
        columns = list(next(iter(one.table.values())))
        rows = {
            run: [number(values.get(column)) for column in columns]
            for run, values in one.table.items()
        }
        found.append(table(["", *columns], rows, name=f"numbers-{name}"))
    if one.names:
        lines = [f"{image}: {', '.join(near)}" for image, near in one.names.items()]
        listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
        found.append(folded("Names of the images, nearest first", f"<ul>{listed}</ul>"))
    return found


def _settings(runs: Sequence[Run]) -> str:
    dumps = [run.settings.model_dump(mode="json") for run in runs]
    others = differing(runs)
    rows = {name: [escape(_value(dump[name])) for dump in dumps] for name in dumps[0]}
    unlike = {name: rows.pop(name) for name in others}
    alike = table(_head(runs), rows, name="settings")
    if not unlike:
        return folded("All settings", alike)
    shown = table(_head(runs), unlike, name="differences", marked=others)
    return shown + folded("What all runs share", alike)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "–" if value is None else str(value)


def _head(runs: Sequence[Run]) -> list[str]:
    return ["", *(run.name for run in runs)]
