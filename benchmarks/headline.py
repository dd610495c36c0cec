"""The headline comparison of docs/plan.md: what a stage finds decides what the next one runs.

    FLEXPREDICT_DATA=… python benchmarks/headline.py results/ [--jobs 4] [--until noise]
    FLEXPREDICT_DATA=… python benchmarks/headline.py results/ --floor pixels        or untrained

Stages are studies, each in a folder of its own. What is done is skipped, also where only its
results.jsonl is there; after a signal the same command goes on.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexpredict.bench import bench
from flexpredict.config import settings_from
from flexpredict.engine.distributed import pick_device
from flexpredict.study.plan import Measure, Study, read_study, trials
from flexpredict.study.run import run_study
from flexpredict.study.tables import Line, estimate, values_of

DATA = "tiny-imagenet:train"
HELD_OUT = "held out, kNN"
EVEN = 0.1  # points: of settings that are this near to each other the milder is taken
SEEDS = [10, 11, 12, 13, 14]
MEASURES = {
    "1 %": Measure(
        method="logistic", options={"data": "tiny-imagenet", "labels": "5/class", "draws": 5}
    ),
    "10 %": Measure(method="logistic", options={"data": "tiny-imagenet", "labels": "50/class"}),
    "100 %": Measure(method="probe", options={"data": "tiny-imagenet"}),
    "kNN": Measure(method="knn", options={"data": "tiny-imagenet"}),
    "boxes": Measure(method="boxes", key="iou", options={"data": "tiny-imagenet"}),
    "neighbours": Measure(method="learnt", key="neighbourhood_mass"),
}
GAUGES = ["norm_A", "norm_mask_token", "norm_gamma"]
MAE = {"objective": "mae", "masking": "random", "positions": "sincos"}


def better_changes(lines: Sequence[Line], study: Study) -> dict[str, dict[str, Any]]:
    """Of each setting the best value that beats the start, by name, the best of all first."""
    scores = {name: _score(lines, name) for name in study.variants}
    assert study.baseline is not None
    found: dict[str, str] = {}  # by setting
    for name, settings in study.variants.items():
        if scores[name] > scores[study.baseline]:
            (factor,) = settings
            if factor not in found or scores[name] > scores[found[factor]]:
                found[factor] = name
    best = sorted(found.values(), key=lambda name: -scores[name])
    return {name: dict(study.variants[name]) for name in best}


def mildest_best(lines: Sequence[Line], values: Mapping[str, float]) -> float:
    """The smallest value that is the best, or as good."""
    scores = {name: _score(lines, name) for name in values}
    best = max(scores.values())
    return min(values[name] for name, score in scores.items() if score > best - EVEN)


def _score(lines: Sequence[Line], variant: str) -> float:
    return estimate(list(values_of(lines, variant, HELD_OUT).values())).mean


class Stages:
    def __init__(self, out: Path, jobs: int, device: str | None) -> None:
        self.out, self.jobs, self.device = out, jobs, device
        self.tuning = read_study("baseline")
        self.held_out = {HELD_OUT: self.tuning.measures[HELD_OUT]}

    def _run(self, name: str, study: Study) -> list[dict[str, Any]]:
        todo = trials(study, DATA)
        return run_study(study, todo, self.out / name, jobs=self.jobs, device=self.device)

    def _tuned(self, title: str, **more: Any) -> Study:
        """A study of ViT-Ti/8 by the held-out measure."""
        return Study(
            title=title, question="Which is best on held-out training images?",
            recipe=self.tuning.recipe, measures=self.held_out, gauges=GAUGES, **more,
        )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """The baseline's, after tuning."""
        better = better_changes(self._run("1-baseline", self.tuning), self.tuning)
        if len(better) < 2:
            return next(iter(better.values()), {})
        single, combined = next(iter(better)), {}
        for change in better.values():
            combined |= change
        study = self._tuned(
            "The best change, and all together", settings=self.tuning.settings,
            variants={single: better[single], "together": combined},
        )  # fmt: skip
        lines = self._run("2-together", study)
        return combined if _score(lines, "together") > _score(lines, single) else better[single]

    def noise_std(self, settings: Mapping[str, Any]) -> float:
        values = {f"noise {std:g}": std for std in (0.1, 0.25, 0.5, 1.0)}
        study = self._tuned(
            "Tuning noise_std", settings={"epochs": 20, **settings}, seeds=[0, 1],
            variants={name: {"positions": "stop", "noise_std": x} for name, x in values.items()},
        )  # fmt: skip
        return mildest_best(self._run("3-noise", study), values)

    def headline(self, settings: Mapping[str, Any], noise_std: float) -> None:
        study = Study(
            title="StoP against sin-cos positions", question="Do noisy positions help?",
            recipe="small/stop-vit-s8-64", settings=dict(settings), seeds=SEEDS, baseline="sincos",
            variants={
                "sincos": {"positions": "sincos"},
                "stop": {"positions": "stop", "noise_std": noise_std},
            },
            measures=MEASURES, gauges=GAUGES,
        )  # fmt: skip
        self._run("4-headline", study)

    def mae(self, settings: Mapping[str, Any]) -> None:
        """MAE with a learning rate of its own, for as many GPU minutes as a headline run."""
        rates = {f"lr {lr:g}": {**MAE, "lr": lr} for lr in (5e-4, 1e-3, 2e-3)}
        study = self._tuned("MAE's learning rate", settings={"epochs": 20}, variants=rates)
        lines = self._run("5-mae-lr", study)
        best = max(rates, key=lambda name: _score(lines, name))
        epochs = self._epochs(settings, rates[best])
        measures = {name: one for name, one in MEASURES.items() if one.method != "learnt"}
        study = Study(
            title="MAE for as long", question="What does the same GPU time give?",
            recipe="small/stop-vit-s8-64", settings={"epochs": epochs},
            variants={"mae": rates[best]}, seeds=SEEDS[:2], measures=measures, gauges=GAUGES,
        )  # fmt: skip
        self._run("6-mae", study)

    def floor(self, which: str) -> None:
        """The same measures of what was never trained."""
        measures = {
            name: one.model_copy(update={"options": {**one.options, "encoder": which}})
            for name, one in MEASURES.items()
            if one.method != "learnt"
        }
        study = Study(
            title="Without training", question="What does an encoder have to be better than?",
            recipe="small/stop-vit-s8-64", settings={"epochs": None, "steps": 1, "batch_size": 64},
            variants={which: {"positions": "sincos"}}, seeds=SEEDS[:1], measures=measures,
        )  # fmt: skip
        self._run(f"0-{which}", study)

    def _epochs(self, settings: Mapping[str, Any], mae: Mapping[str, Any]) -> int:
        """Of MAE, in the time of I-JEPA's; measured once."""
        kept = self.out / "6-mae-epochs.json"
        if not kept.exists():
            found = {}
            for name, values in (("ijepa", settings), ("mae", mae)):
                chosen = settings_from(dict(values), recipe="small/stop-vit-s8-64")
                found[name] = bench(chosen, pick_device(self.device)).images_per_second
                found["epochs"] = found.get("epochs") or chosen.epochs
            found["epochs"] = round(found["epochs"] * found["mae"] / found["ijepa"])
            kept.write_text(json.dumps(found) + "\n")
        return int(json.loads(kept.read_text())["epochs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--until", default="mae", choices=["baseline", "noise", "headline", "mae"])
    parser.add_argument("--floor", choices=["pixels", "untrained"], help="only this row")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stages = Stages(given.out, given.jobs, given.device)
    if given.floor:
        stages.floor(given.floor)
        return
    settings = stages.settings()
    print(f"both arms: {settings}", flush=True)
    if given.until == "baseline":
        return
    noise_std = stages.noise_std(settings)
    print(f"StoP: noise_std {noise_std}", flush=True)
    if given.until == "noise":
        return
    stages.headline(settings, noise_std)
    if given.until == "mae":
        stages.mae(settings)


if __name__ == "__main__":
    main()
