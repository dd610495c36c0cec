"""The demo: pretrain with deterministic and with stochastic positions, probe, compare, report."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexpredict.build import build_encoder, image_size
from flexpredict.config import Settings, settings_from
from flexpredict.data.sources import open_source
from flexpredict.engine.distributed import pick_device
from flexpredict.engine.encoders import load_encoder
from flexpredict.evaluate.scenes import SceneTasks
from flexpredict.files import make_writable, write_text
from flexpredict.model.pixels import PixelMeans
from flexpredict.progress import Tally
from flexpredict.report.demo_page import write_demo_page
from flexpredict.train.together import Job, train_together

RUNS = {"deterministic": "sincos", "stop": "stop"}
TEST_SCENES = 4_000
_OWN_FILES = {*RUNS, "results.json", "report.html"}
_RECIPE_MINUTES = 5  # the recipe's steps are meant for this long on two cores

Accuracies = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Demo:
    """Test accuracies in percent: row of the table -> task -> accuracy."""

    accuracies: Accuracies
    steps: int
    seconds: float
    report: Path


def run_demo(out: Path, *, minutes: float, seed: int, device: str | None = None) -> Demo:
    """All of it. A longer demo goes on from the checkpoints of a shorter one in the same folder."""
    started = time.monotonic()
    settings = demo_settings(minutes, seed)
    if out.exists() and not (out.is_dir() and {p.name for p in out.iterdir()} <= _OWN_FILES):
        raise ValueError(f"{out} holds something other than a demo: choose another --out")
    make_writable(out)
    assert settings.data is not None
    size = image_size(settings)[0]
    assert settings.steps is not None
    rendering = Tally("scenes")
    source = open_source(settings.data, image_size=size, progress=rendering)
    jobs = [
        Job(settings.model_copy(update={"positions": positions}), out / name)
        for name, positions in RUNS.items()
    ]
    train_together(jobs, device=device)
    tasks = SceneTasks.open(len(source), TEST_SCENES, size, progress=rendering)
    place = pick_device(device)
    accuracies = {
        "majority": tasks.majority(),
        "pixels": tasks.probe(PixelMeans((8, 8), size // 8)),
        "untrained": tasks.probe(build_encoder(settings).eval().to(place)),
        **{name: tasks.probe(load_encoder(out / name).to(place)) for name in RUNS},
    }
    report = out / "report.html"
    write_text(out / "results.json", json.dumps({"steps": settings.steps, **accuracies}, indent=2))
    write_demo_page(report, [out / name for name in RUNS], accuracies, source, settings)
    return Demo(accuracies, settings.steps, time.monotonic() - started, report)


def demo_settings(minutes: float, seed: int) -> Settings:
    """The recipe `demo`, its schedule stretched in proportion to the minutes."""
    settings = settings_from({"seed": seed}, recipe="demo")
    assert settings.steps is not None
    steps = max(1, round(settings.steps * minutes / _RECIPE_MINUTES))
    return settings.model_copy(update={"steps": steps})
