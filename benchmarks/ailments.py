"""Runs that are well and runs made to fail, in many seeds: what `doctor` is fitted and tried on.

    python benchmarks/ailments.py make runs/ --seeds 0-9 --jobs 16      the short kinds, on CPUs
    python benchmarks/ailments.py make runs/ --kinds recipes --jobs 2
    python benchmarks/ailments.py make runs/ --kinds tiny-imagenet --jobs 4 --device cuda
    python benchmarks/ailments.py fit runs/
    python benchmarks/ailments.py judge more/
    python benchmarks/ailments.py add results/{headline,again-s8}/runs/stop-* --name small-s8-64

The third needs Tiny-ImageNet in the folder that FLEXPREDICT_DATA names.
`make` writes runs/KIND/SEED with config.yaml and metrics.jsonl; what is there is left alone.
`fit` takes thresholds from seeds 0 to 4 and from the curves that results/ has of Tiny-ImageNet,
tries them on the other seeds, and writes what comes with the package: health/thresholds.yaml and
health/reference.json; docs/health.md gets the table.
`judge` writes nothing: it says what the package as it is calls runs of any seeds.
`add` puts healthy runs of any recipe into the latter, without fitting anything on them.
"""

import argparse
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ailing_kinds import ALL, FULL, KEPT_RUNS, KINDS, RECIPES, SHORT, TINY

import flexpredict as fp
from flexpredict.config import Settings, read_settings
from flexpredict.data.sources import MemorySource, open_source
from flexpredict.health import diagnosis, reference
from flexpredict.health.diagnosis import (
    GAUGED,
    RULES,
    diagnose,
    holds,
    measure,
)
from flexpredict.run_folder import CONFIG, METRICS, read_metrics

FITTED = range(5)  # seeds; the others are for the test
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "health.md"
BEGIN, END = "<!-- benchmarks/ailments.py fit -->", "<!-- end -->"
KEPT = {"config.yaml", "metrics.jsonl"}
# The nearest runs that a fit of 15 November spared and struck, by other runs of the same kinds, of
# which no curves were kept (those of TINY among them). They count here, too.
EARLIER = {
    "growth": (1.72, 11), "loss_kept": (0.0568, 0.0297), "spread_kept": (0.362, 0.174),
    "rank_kept": (0.558, 0.444), "noise_over_signal": (0.387, 1.86), "noise_kept": (0.628, 0.361),
    "data_wait": (0.251, 0.632), "movement": (0.0243, 0.000879), "lag": (0.428, 0.856),
}  # fmt: skip


def make_one(name: str, seed: int, out: Path, device: str | None) -> None:
    kind = ALL[name]
    settings = (SHORT if name in KINDS else FULL) | kind.settings
    images: Any = settings.pop("data")
    if kind.images is not None:
        source = open_source(images, image_size=64)
        assert isinstance(source, MemorySource)
        images = kind.images(source)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        run = Path(scratch) / out.name
        try:
            fp.pretrain(images, run, device=device, seed=seed, **settings)
        except FloatingPointError as error:
            print(error, file=sys.stderr)
        if kind.until is not None:
            lines = [line for line in read_metrics(run) if line["step"] <= kind.until]
            (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
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
    path: Path
    kind: str
    seed: int
    settings: Settings
    lines: list[dict[str, Any]]


def read_runs(folder: Path) -> list[Run]:
    return [
        Run(
            path,
            path.parent.name,
            int(path.name),
            read_settings(path / "config.yaml"),
            read_metrics(path),
        )
        for path in sorted(folder.glob("*/*"))
        if (path / "config.yaml").exists() and path.parent.name in ALL
    ]


def kept_runs() -> list[Run]:
    """Of results/, all of them fitted on."""
    return [
        Run(path, name, FITTED[0], read_settings(path / CONFIG), read_metrics(path))
        for name in KEPT_RUNS
        for path in sorted((ROOT / name / "runs").iterdir())
    ]


@functools.cache
def prefixes(run: Path) -> list[dict[str, float]]:
    """The measures at every line: a live judgement sees no more."""
    settings, lines = read_settings(run / CONFIG), read_metrics(run)
    return [measure(settings, lines[:end]) for end in range(1, len(lines) + 1)]


class Fit(NamedTuple):
    """A threshold, and the nearest runs on both of its sides; None where nothing is fitted."""

    limit: float
    spared: float | None = None
    struck: float | None = None


def fit(runs: Sequence[Run]) -> dict[str, Fit]:
    """Each threshold halfway (in logarithm) between those it must strike and those it must not.

    Healthy runs must not be struck at any time; runs of another ailment not at their end, unless
    that ailment is looked for earlier.
    """
    order = list(dict.fromkeys(rule.verdict for rule in RULES))
    fits = {"broken": Fit(0.5), "apart": Fit(1e-9)}  # yes or no
    conditions = {c.measure: c for rule in RULES for c in rule.conditions}
    for name in conditions.keys() - fits.keys():
        verdicts = {kind.verdict for kind in ALL.values() if name in kind.by}
        last = max(order.index(verdict) for verdict in verdicts)
        spared, struck = ([one] for one in EARLIER[name]) if name in EARLIER else ([], [])
        for run in runs:
            kind = ALL[run.kind]
            if kind.verdict == "healthy":
                spared += [found[name] for found in prefixes(run.path) if name in found]
            elif (value := measure(run.settings, run.lines).get(name)) is not None:
                if name in kind.by:
                    struck.append(value)
                elif order.index(kind.verdict) > last:
                    spared.append(value)
        sign = 1 if conditions[name].above else -1
        worst, best = sign * max(sign * x for x in spared), sign * min(sign * x for x in struck)
        apart = sign * best > sign * worst
        limit = math.sqrt(best * worst) if apart else worst * 1.05**sign  # rather miss than alarm
        fits[name] = Fit(float(f"{limit:.3g}"), worst, best)
    return {name: fits[name] for name in conditions}


def described(fits: dict[str, Fit], runs: Sequence[Run]) -> str:
    """Thresholds, and what kinds of runs are called by them, as Markdown."""
    rows = ["| threshold | value | the nearest run spared | the nearest run struck |"]
    rows += ["|---|---:|---:|---:|"]
    for name, one in fits.items():
        if one.spared is not None:
            rows.append(f"| `{name}` | {one.limit:g} | {one.spared:.3g} | {one.struck:.3g} |")
    limits = {name: one.limit for name, one in fits.items()}
    return "\n".join([*rows, "", judged(runs, limits)])


def judged(runs: Sequence[Run], limits: Mapping[str, float]) -> str:
    """What kinds of runs are called by thresholds, as Markdown."""
    called = [(r, diagnose(r.settings, r.lines, limits).verdict) for r in runs]
    rows = ["| kind | should be | seeds 0 to 4, fitted | other seeds, tested |"]
    rows += ["|---|---|---|---|"]
    for name, kind in ALL.items():
        cells = [
            ", ".join(
                f"{verdict} {count}"
                for verdict, count in Counter(
                    verdict
                    for r, verdict in called
                    if r.kind == name and (r.seed in FITTED) == fitted
                ).most_common()
            )
            for fitted in (True, False)
        ]
        if any(cells):
            rows.append(f"| `{name}` | {kind.verdict} | {cells[0]} | {cells[1]} |")
    tested = [(ALL[r.kind].verdict, verdict) for r, verdict in called if r.seed not in FITTED]
    names = ["healthy", *dict.fromkeys(rule.verdict for rule in RULES)]
    counts = Counter(tested)
    rows += [
        "",
        "The confusion matrix of the tested seeds; rows are what runs should be called:",
        "",
    ]
    rows += ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for should in names:
        cells = [str(counts[should, name] or "") for name in names]
        rows.append(f"| **{should}** | " + " | ".join(cells) + " |")
    right = sum(should == verdict for should, verdict in tested)
    well = [r for r in runs if ALL[r.kind].verdict == "healthy" and r.seed not in FITTED]
    alarmed = sum(any(_ailing(found, limits) for found in prefixes(run.path)) for run in well)
    rows += [
        "",
        f"{right} of {len(tested)} are called rightly. Of {len(well)} healthy runs among them, "
        f"{alarmed} were warned at some time while they trained.",
    ]
    return "\n".join(rows)


def keep(known: dict[str, Any]) -> None:
    """Puts references into the package, beside those of other names."""
    reference.write(json.loads(reference.PACKED.read_text("utf-8")) | known)


def add(name: str, folders: Sequence[Path]) -> None:
    runs = [(read_settings(path / "config.yaml"), read_metrics(path)) for path in folders]
    if len({(x.model, x.patch_size, x.positions, x.noise_std, x.epochs) for x, _ in runs}) > 1:
        raise SystemExit("these runs are not of one kind: add those of each kind by themselves")
    for path, run in zip(folders, runs, strict=True):
        if (verdict := diagnose(*run).verdict) != "healthy":
            raise SystemExit(f"{path} is {verdict}: only healthy runs are added")
    keep({name: reference.pack(runs, "healthy")})


def _ailing(found: Mapping[str, float], limits: Mapping[str, float]) -> bool:
    return any(all(holds(c, found, limits) for c in rule.conditions) for rule in RULES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["make", "fit", "judge", "add", "one"])
    parser.add_argument("runs", type=Path, nargs="+", help="a folder of runs; to add, run folders")
    parser.add_argument("--name", help="of what is added")
    parser.add_argument("--kinds", default="kinds", help="names, or kinds, recipes, tiny-imagenet")
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    groups = {"kinds": list(KINDS), "recipes": list(RECIPES), "tiny-imagenet": list(TINY)}
    kinds = groups.get(given.kinds, given.kinds.split(","))
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if given.command == "one":
        make_one(kinds[0], seeds[0], given.runs[0], given.device)
    elif given.command == "make":
        make(given.runs[0], kinds, seeds, given.jobs, given.device)
    elif given.command == "judge":
        runs = [run for folder in given.runs for run in read_runs(folder)]
        if not runs:
            parser.error(f"there are no runs in {given.runs[0]}: expected KIND/SEED folders")
        print(judged(runs, diagnosis.thresholds()))
    elif given.command == "add":
        if given.name is None:
            parser.error("say with --name what these runs are")
        add(given.name, given.runs)
    else:
        runs = read_runs(given.runs[0])
        fits = fit([*(run for run in runs if run.seed in FITTED), *kept_runs()])
        text = described(fits, runs)
        print(text)
        head = "# Where rules strike: written by benchmarks/ailments.py, see docs/health.md.\n"
        limits = yaml.safe_dump({name: one.limit for name, one in fits.items()}, sort_keys=False)
        Path(diagnosis.__file__).with_name("thresholds.yaml").write_text(head + limits)
        before, _, rest = DOCS.read_text("utf-8").partition(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
        known = {}
        for name, kind in ALL.items():
            some = [(r.settings, r.lines) for r in runs if r.kind == name and r.seed in FITTED]
            if some and any(GAUGED in line for line in some[0][1]):
                known[name] = reference.pack(some, kind.verdict)
        keep(known)


if __name__ == "__main__":
    main()
