"""The demo's page: table, curves, masks and scenes."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from flexpredict.build import build_sampler, image_size
from flexpredict.config import Settings
from flexpredict.data.sources import Source
from flexpredict.data.transforms import Transform, read_images
from flexpredict.files import write_text
from flexpredict.report.analysis.masks import coverage
from flexpredict.report.figures.curves import bars, curves
from flexpredict.report.figures.masks import image_grid, mask_coverage, mask_examples
from flexpredict.report.page import folded, number, page, picture, table, vector
from flexpredict.report.runs import read_runs

# What people call the rows and columns of the demo's table.
ROW_NAMES = {
    "majority": "majority class",
    "pixels": "pixel block means",
    "untrained": "untrained encoder",
    "deterministic": "deterministic positions",
    "stop": "StoP",
}
TASK_NAMES = {"count": "count", "dist": "distance", "class": "class"}
_SHOWN_IMAGES, _MASKED_IMAGES = 32, 6


def write_demo_page(
    path: Path,
    runs: Sequence[Path],
    accuracies: Mapping[str, Mapping[str, float]],
    source: Source,
    settings: Settings,
) -> None:
    size = image_size(settings)
    rows = range(min(_SHOWN_IMAGES, len(source)))
    read = read_images(source, rows, size, Transform(), settings.in_channels)
    shown = np.ascontiguousarray(read.permute(0, 2, 3, 1).numpy())
    named = {
        ROW_NAMES[row]: {TASK_NAMES[task]: value for task, value in values.items()}
        for row, values in accuracies.items()
    }
    patch = settings.patch_size
    sampler = build_sampler(settings, (size[0] // patch, size[1] // patch))
    both = read_runs(runs)
    metrics = {run.name: run.metrics for run in both}
    gauges = {"loss": "loss", "norm_A": "norm of A", "norm_mask_token": "norm of the mask token"}
    shares = coverage(sampler, settings.chunk_size)
    sections = [
        "<p class=note>Two encoders were pretrained on the embedded scenes, one with deterministic "
        "and one with stochastic positions (StoP). A ridge probe on frozen features of the target "
        "encoder was fitted on the training scenes and tested once. One seed, a very small "
        "model: the demo makes no claim about StoP against deterministic positions.</p>",
        "<h2>Probes</h2>",
        _accuracies(named),
        vector(bars(named, ROW_NAMES["majority"]), "Test accuracy by task."),
        "<h2>Curves</h2>",
        vector(
            curves(metrics, gauges, smooth=True),
            "What was logged, and running means where that is much.",
        ),
        "<h2>Masks</h2>",
        picture(
            mask_examples(sampler, shown[:_MASKED_IMAGES], patch),
            "What the context encoder sees (light blue below), and target blocks, a colour each.",
        ),
        picture(
            mask_coverage({str(settings.masking): shares}),
            f"Coverage of the {settings.masking} masks.",
        ),
        "<h2>Scenes</h2>",
        picture(image_grid(shown), "The first training scenes."),
        "<h2>Settings</h2>",
        *(folded(run.name, f"<pre>{escape(run.settings.to_yaml())}</pre>") for run in both),
    ]
    write_text(path, page("FlexPredict demo", sections))


def _accuracies(rows: Mapping[str, Mapping[str, float]]) -> str:
    tasks = list(next(iter(rows.values())))
    shown = {}
    for name, values in rows.items():
        numbers = [values[task] for task in tasks]
        shown[name] = [number(n, ".1f") for n in [*numbers, sum(numbers) / len(numbers)]]
    return table(["test accuracy, %", *tasks, "mean"], shown, name="accuracies")
