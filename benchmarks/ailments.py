"""Runs that are well and runs made to fail, in many seeds: what `doctor` is fitted and tried on.

    python benchmarks/ailments.py make runs/ --seeds 0-9 --jobs 16      the short kinds, on CPUs
    python benchmarks/ailments.py make runs/ --kinds recipes --seeds 0-4 --jobs 4 --device cuda
    python benchmarks/ailments.py fit runs/

`make` writes runs/KIND/SEED with config.yaml and metrics.jsonl; what is there is left alone.
`fit` takes thresholds from seeds 0 to 4, tries them on the others, and writes what comes with the
package: health/thresholds.yaml and health/reference.json; docs/health.md gets the table.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

import flexpredict as fp
from flexpredict.config import Settings, read_settings
from flexpredict.data.sources import MemorySource, open_source
from flexpredict.health import diagnosis, reference
from flexpredict.health.diagnosis import GAUGED, RULES, diagnose, measure, read_metrics

FITTED = range(5)  # seeds; the others are for the test
ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- benchmarks/ailments.py fit -->", "<!-- end -->"
KEPT = {"config.yaml", "metrics.jsonl"}
# The demo's recipe, short: about 10 s on a core.
SHORT: dict[str, Any] = {
    "recipe": "demo", "data": "scenes:2000", "steps": 400, "log_every": 5, "gauge_every": 20,
    "compile": False,
}  # fmt: skip
FULL: dict[str, Any] = {"gauge_every": 20, "log_every": 20, "data": "scenes:8000"}


class Slow(MemorySource):
    """A disk that takes its time."""

    def read(self, index: int) -> Any:
        time.sleep(0.005)
        return super().read(index)


def slow(source: MemorySource) -> MemorySource:
    return Slow(source.images)


def one_colour(source: MemorySource) -> MemorySource:
    means = source.images.mean(axis=(1, 2), keepdims=True).astype(np.uint8)
    return MemorySource(np.broadcast_to(means, source.images.shape).copy())


class Kind(NamedTuple):
    """What a run has to be called, and by which measures it is told."""

    verdict: str
    by: tuple[str, ...]
    settings: dict[str, Any]
    images: Callable[[MemorySource], MemorySource] | None = None


def healthy(**settings: Any) -> Kind:
    return Kind("healthy", (), settings)


KINDS = {
    "stop": healthy(),
    "sincos": healthy(positions="sincos"),
    "mae": healthy(objective="mae", masking="random", positions="sincos"),
    "lr-nan": Kind("exploding", ("broken",), {"lr": 1e3}),
    "lr-x100": Kind("exploding", ("growth",), {"lr": 0.1}),
    "ema-off": Kind("collapsed", ("loss_kept",), {"ema": 0.0, "ema_final": 0.0, "lr": 1e-2}),
    "one-colour": Kind("collapsed", ("loss_kept",), {}, one_colour),
    "lr-x1000": Kind("collapsed", ("spread_kept",), {"lr": 1.0}),
    "ema-weak": Kind("collapsing", ("rank_kept",), {"ema": 0.5, "ema_final": 0.5, "lr": 1e-2}),
    "noise-x20": Kind("drowned", ("noise_over_signal",), {"noise_std": 5.0}),
    "decay": Kind(
        "escaping", ("noise_kept", "A_kept"),
        {"noise_std": 1.0, "weight_decay": 10.0, "weight_decay_final": 10.0},
    ),
    "untied": Kind(
        "degenerate", ("noise_kept",),
        {"tied": False, "noise_std": 2.0, "weight_decay": 1.0, "weight_decay_final": 1.0},
    ),
    "slow-disk": Kind("starved", ("data_wait",), {"hold": "none", "steps": 100}, slow),
    "lr-tiny": Kind(
        "stalled", ("movement",), {"lr": 1e-7, "lr_start": 1e-7, "lr_final": 1e-7}
    ),
    "ema-1": Kind("stalled", ("movement",), {"ema": 1.0}),
    "short": Kind("under-trained", ("lag",), {"steps": 60, "log_every": 1, "gauge_every": 5}),
}  # fmt: skip
RECIPES = {
    "demo": healthy(recipe="demo"),
    "demo-sincos": healthy(recipe="demo", positions="sincos"),
} | {
    name.replace("/", "-"): healthy(recipe=name)
    for stem in ("t8-64", "s8-64", "t4-64", "s8-96")
    for name in (f"small/stop-vit-{stem}", f"small/stop-vit-{stem}@sincos")
}
ALL = KINDS | RECIPES


def make_one(name: str, seed: int, out: Path, device: str | None) -> None:
    kind = ALL[name]
    settings = (SHORT if name in KINDS else FULL) | kind.settings
    source = open_source(settings.pop("data"), image_size=64)
    assert isinstance(source, MemorySource)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        run = Path(scratch) / out.name
        images = source if kind.images is None else kind.images(source)
        try:
            fp.pretrain(images, run, device=device, seed=seed, **settings)
        except FloatingPointError as error:
            print(error, file=sys.stderr)
        for path in run.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        run.rename(out)


def make(runs: Path, kinds: Sequence[str], seeds: Iterable[int], jobs: int, device: str) -> None:
    """Every run is a process of its own, of one thread."""
    waiting = [(kind, seed) for seed in seeds for kind in kinds]
    waiting = [pair for pair in waiting if not (runs / pair[0] / str(pair[1])).exists()]
    running: dict[subprocess.Popen[bytes], str] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            kind, seed = waiting.pop(0)
            out = runs / kind / str(seed)
            out.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, "one", str(out), "--kinds", kind]
            command += ["--seeds", str(seed), "--device", device]
            with (out.parent / f"{seed}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
                )
            running[process] = f"{kind}, seed {seed}"
        time.sleep(0.2)
        for process in [one for one in running if one.poll() is not None]:
            state = "done" if process.returncode == 0 else f"failed ({process.returncode})"
            print(f"{running.pop(process)}: {state}, {len(waiting)} left", flush=True)


class Run(NamedTuple):
    kind: str
    seed: int
    settings: Settings
    lines: list[dict[str, Any]]


def read_runs(folder: Path) -> list[Run]:
    return [
        Run(
            path.parent.name,
            int(path.name),
            read_settings(path / "config.yaml"),
            read_metrics(path),
        )
        for path in sorted(folder.glob("*/*"))
        if (path / "config.yaml").exists() and path.parent.name in ALL
    ]


def prefixes(run: Run) -> list[dict[str, float]]:
    """The measures at every gauged line: what a live judgement sees."""
    gauged = [line for line in run.lines if GAUGED in line]
    return [measure(run.settings, gauged[:end]) for end in range(1, len(gauged) + 1)]


def fit(runs: Sequence[Run]) -> dict[str, float]:
    """Each threshold halfway (in logarithm) between those it must strike and those it must not.

    Healthy runs must not be struck at any time; runs of another ailment not at their end, unless
    that ailment is looked for earlier.
    """
    order = list(dict.fromkeys(rule.verdict for rule in RULES))
    limits = {"broken": 0.5, "gamma_growth": 1.0}
    conditions = {c.measure: c for rule in RULES for c in rule.conditions}
    for name, condition in conditions.items():
        if name in limits:
            continue
        verdicts = {kind.verdict for kind in KINDS.values() if name in kind.by}
        last = max(order.index(verdict) for verdict in verdicts)
        struck, spared = [], []
        for run in runs:
            kind = ALL[run.kind]
            if kind.verdict == "healthy":
                spared += [found[name] for found in prefixes(run) if name in found]
            elif (found := measure(run.settings, run.lines)).get(name) is not None:
                if name in kind.by:
                    struck.append(found[name])
                elif order.index(kind.verdict) > last:
                    spared.append(found[name])
        sign = 1 if condition.above else -1
        worst, best = sign * max(sign * x for x in spared), sign * min(sign * x for x in struck)
        apart = sign * best > sign * worst
        limits[name] = float(f"{math.sqrt(best * worst) if apart else worst * 1.05**sign:.3g}")
        print(f"{name}: spared to {worst:.4g}, struck from {best:.4g} -> {limits[name]}"
              f"{'' if apart else '  OVERLAP'}")  # fmt: skip
    return limits


def table(runs: Sequence[Run], limits: dict[str, float]) -> str:
    """What kinds of runs are called, as Markdown: a row for each kind."""
    rows = [
        "| kind | should be | fitted on (seeds 0-4) | tested on (seeds 5-9) |",
        "|---|---|---|---|",
    ]
    right: Counter[bool] = Counter()
    total: Counter[bool] = Counter()
    for name, kind in ALL.items():
        cells = []
        for test in (False, True):
            some = [r for r in runs if r.kind == name and (r.seed not in FITTED) == test]
            called = Counter(diagnose(r.settings, r.lines, limits).verdict for r in some)
            right[test] += called[kind.verdict]
            total[test] += len(some)
            cells.append(", ".join(f"{verdict} {n}" for verdict, n in called.most_common()))
        if any(cells):
            rows.append(f"| `{name}` | {kind.verdict} | {cells[0]} | {cells[1]} |")
    false = sum(
        any(_strikes(run, end, limits) for end in range(1, len(run.lines) + 1))
        for run in runs
        if ALL[run.kind].verdict == "healthy" and run.seed not in FITTED
    )
    rows += [
        "",
        f"Called rightly: {right[False]} of {total[False]} runs that the thresholds were fitted "
        f"on, {right[True]} of {total[True]} others. Healthy runs of seeds 5-9 that were warned "
        f"at any time while they trained: {false}.",
    ]
    return "\n".join(rows)


def _strikes(run: Run, end: int, limits: dict[str, float]) -> bool:
    if GAUGED not in run.lines[end - 1]:
        return False
    gauged = [line for line in run.lines[:end] if GAUGED in line]
    return diagnose(run.settings, gauged, limits).verdict != "healthy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["make", "fit", "one"])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--kinds", default="kinds", help="names, or `kinds`, or `recipes`")
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    groups = {"kinds": list(KINDS), "recipes": list(RECIPES)}
    kinds = groups.get(given.kinds, given.kinds.split(","))
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if given.command == "one":
        make_one(kinds[0], seeds[0], given.runs, given.device)
    elif given.command == "make":
        make(given.runs, kinds, seeds, given.jobs, given.device)
    else:
        runs = read_runs(given.runs)
        limits = fit([run for run in runs if run.seed in FITTED])
        text = table(runs, limits)
        print(text)
        path = Path(diagnosis.__file__).with_name("thresholds.yaml")
        head = path.read_text().splitlines()[0]
        path.write_text(f"{head}\n{yaml.safe_dump(limits, sort_keys=False)}")
        docs = ROOT / "docs" / "health.md"
        before, _, rest = docs.read_text().partition(BEGIN)
        docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
        reference.write({
            name: reference.pack([(r.settings, r.lines) for r in runs
                                  if r.kind == name and r.seed in FITTED], kind.verdict)
            for name, kind in ALL.items() if any(r.kind == name for r in runs)
        })  # fmt: skip


if __name__ == "__main__":
    main()
