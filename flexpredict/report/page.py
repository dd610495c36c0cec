"""A self-contained page: no network, opens from disk, prints well. It starts from run folders."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from flexpredict.build import build_sampler, image_size
from flexpredict.config import Settings, read_settings
from flexpredict.data.sources import Source
from flexpredict.data.transforms import Transform, read_images
from flexpredict.engine.checkpoint import write_text
from flexpredict.report import figures

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg, figure img { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: .9rem; }
details { margin: 1rem 0; } pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; }
.wide { overflow-x: auto; }
@media (max-width: 36rem) { th, td { padding: .25rem .35rem; font-size: .85rem; } }
@media print { body { margin: 0; max-width: none; } figure, table { break-inside: avoid; } }
"""
# What people call the rows and columns of the demo's table.
ROW_NAMES = {
    "majority": "majority class",
    "pixels": "pixel block means",
    "untrained": "untrained encoder",
    "deterministic": "deterministic positions",
    "stop": "StoP",
}
TASK_NAMES = {"count": "count", "dist": "distance", "class": "class"}
_SHOWN_IMAGES, _MASKED_IMAGES, _SMOOTH = 32, 6, 25


def write_demo_page(
    path: Path,
    runs: Sequence[Path],
    accuracies: Mapping[str, Mapping[str, float]],
    source: Source,
    settings: Settings,
) -> None:
    """The demo's page: table, curves, masks and scenes."""
    shown = _images(source, settings, _SHOWN_IMAGES)
    named = {
        ROW_NAMES[row]: {TASK_NAMES[task]: value for task, value in values.items()}
        for row, values in accuracies.items()
    }
    sampler = build_sampler(settings, _grid(settings))
    metrics = {run.name: read_metrics(run) for run in runs}
    gauges = {"loss": "loss", "norm_A": "norm of A", "norm_mask_token": "norm of the mask token"}
    sections = [
        "<p class=note>Two encoders were pretrained on the embedded scenes, one with deterministic "
        "and one with stochastic positions (StoP). A ridge probe on frozen features of the target "
        "encoder was fitted on the training scenes and tested once. One seed, a very small "
        "model: the demo makes no claim about StoP against deterministic positions.</p>",
        "<h2>Probes</h2>",
        _table(named),
        _figure(
            figures.to_svg(figures.bars(named, ROW_NAMES["majority"])), "Test accuracy by task."
        ),
        "<h2>Curves</h2>",
        _figure(
            figures.to_svg(figures.curves(metrics, gauges, smooth=_SMOOTH)),
            f"Every step, and the mean of {_SMOOTH} steps.",
        ),
        "<h2>Masks</h2>",
        _picture(
            figures.mask_examples(sampler, shown[:_MASKED_IMAGES], settings.patch_size),
            "What the context encoder sees (light blue below), and target blocks, a colour each.",
        ),
        _picture(figures.mask_coverage(sampler), f"Coverage of the {settings.masking} masks."),
        "<h2>Scenes</h2>",
        _picture(figures.image_grid(shown), "The first training scenes."),
        "<h2>Settings</h2>",
        *(_settings(run) for run in runs),
    ]
    write_text(path, _page("FlexPredict demo", sections))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _page(title: str, sections: Sequence[str]) -> str:
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    tasks = list(next(iter(rows.values())))
    head = "".join(f"<th>{escape(task)}</th>" for task in ["test accuracy, %", *tasks, "mean"])
    body = []
    for name, values in rows.items():
        numbers = [values[task] for task in tasks]
        cells = "".join(f"<td>{n:.1f}</td>" for n in [*numbers, sum(numbers) / len(numbers)])
        body.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    rows_of = "".join(body)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows_of}</tbody></table>"
    return f"<div class=wide>{table}</div>"


def _figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def _picture(figure: Any, caption: str) -> str:
    data = base64.b64encode(figures.to_png(figure)).decode()
    image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
    return _figure(image, caption)


def _settings(run: Path) -> str:
    text = escape(read_settings(run / "config.yaml").to_yaml())
    return f"<details><summary>{escape(run.name)}</summary><pre>{text}</pre></details>"


def _images(source: Source, settings: Settings, count: int) -> Any:
    rows = range(min(count, len(source)))
    images = read_images(source, rows, image_size(settings), Transform(), settings.in_channels)
    return np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())


def _grid(settings: Settings) -> tuple[int, int]:
    height, width = image_size(settings)
    return height // settings.patch_size, width // settings.patch_size
