"""The headline comparison of docs/plan.md: what a stage finds decides what the next one runs.

    FLEXPREDICT_DATA=… python benchmarks/headline.py results/ [--jobs 4] [--until tuned]
    FLEXPREDICT_DATA=… python benchmarks/headline.py results/ --floor pixels        or untrained

Stages are studies, each in a folder of its own. What is done is skipped, also where only its
results.jsonl is there; after a signal the same command goes on.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexpredict.bench import bench
from flexpredict.config import settings_from
from flexpredict.engine.distributed import pick_device
from flexpredict.study.plan import Measure, Study, read_study, trials
from flexpredict.study.run import Planned, run_studies
from flexpredict.study.tables import Line, estimate, values_of

DATA, RECIPE = "tiny-imagenet:train", "small/stop-vit-s8-64"
SINCOS = {"positions": "sincos", "noise_std": 0}
HELD_OUT = "held out, kNN"
EVEN = 0.1  # points: of settings that are this near to each other the milder is taken
SEEDS = [20, 21, 22, 23, 24]
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
FIRST_LOOK = {
    **SINCOS, "batch_size": 1024, "reference_batch_size": None, "ema": 0.996, "augment": "crop-flip"
}  # fmt: skip
MAE = {"objective": "mae", "masking": "random", **SINCOS}


def best(lines: Sequence[Line], names: Iterable[str]) -> str:
    """The variant that scores highest; of equal ones the first."""
    return max(names, key=lambda name: _score(lines, name))


def together(lines: Sequence[Line], variants: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The best batch size, and every change that was better than the batch it was tried on.

    Variants are named by their batch, and after a comma by what else is changed.
    """
    plain = [name for name in variants if name.startswith("batch") and "," not in name]
    found = dict(variants[best(lines, ["start", *plain])])
    for name, settings in variants.items():
        batch, comma, _ = name.partition(", ")
        if comma and _score(lines, name) > _score(lines, batch):
            found |= {key: x for key, x in settings.items() if variants[batch].get(key) != x}
    return found


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
        self.tuning = read_study("baseline-s8")
        self.held_out = {HELD_OUT: self.tuning.measures[HELD_OUT]}

    def _run(self, studies: Mapping[str, Study]) -> list[list[dict[str, Any]]]:
        """The lines of each; all at once."""
        planned = [
            Planned(one, trials(one, DATA), self.out / name) for name, one in studies.items()
        ]
        return run_studies(planned, jobs=self.jobs, device=self.device)

    def _tuned(self, title: str, **more: Any) -> Study:
        """A study of one seed by the held-out measure."""
        return Study(
            title=title, question="Which is best on held-out training images?",
            recipe=RECIPE, measures=self.held_out, gauges=GAUGES, **more,
        )  # fmt: skip

    def tuned(self) -> tuple[dict[str, Any], float]:
        """The settings of both arms, and StoP's noise_std.

        Tuned in 20 epochs; the first EMA once more in the 60 of the comparison.
        """
        (lines,) = self._run({"baseline-s8": self.tuning})
        variants, changes = dict(self.tuning.variants), together(lines, self.tuning.variants)
        if changes not in variants.values():
            variants["together"] = changes
            update = {"variants": {"together": changes}, "baseline": None}
            lines = [*lines, *self._run({"together": self.tuning.model_copy(update=update)})[0]]
        found = {**variants[best(lines, variants)], "reference_batch_size": None}
        ema = found.get("ema", settings_from({}, recipe=RECIPE).ema)
        starts = {f"ema {x:.5g}": x for x in (ema, 1 - (1 - ema) / 3)}
        noises = {f"noise {std:g}": std for std in (0.05, 0.1, 0.25)}
        length, noise = self._run({
            "length": self._tuned(
                "The first EMA of a longer run", settings={**found, **SINCOS},
                variants={name: {"ema": x} for name, x in starts.items()},
            ),
            "noise": self._tuned(
                "Tuning noise_std", settings={**found, "positions": "stop", "epochs": 20},
                variants={name: {"noise_std": x} for name, x in noises.items()},
            ),
        })  # fmt: skip
        return found | {"ema": starts[best(length, starts)]}, mildest_best(noise, noises)

    def headline(self, settings: Mapping[str, Any], noise_std: float) -> None:
        study = Study(
            title="StoP against sin-cos positions", question="Do noisy positions help?",
            recipe=RECIPE, settings=dict(settings), seeds=SEEDS, baseline="sincos",
            variants={
                "sincos": SINCOS,
                "stop": {"positions": "stop", "noise_std": noise_std},
            },
            measures=MEASURES, gauges=GAUGES,
        )  # fmt: skip
        self._run({"headline": study})

    def beside(self, settings: Mapping[str, Any]) -> None:
        """MAE with a learning rate of its own, for as many GPU minutes as a headline run.

        And I-JEPA as it was first looked at, untuned.
        """
        rates = {f"lr {lr:g}": {**MAE, "lr": lr} for lr in (5e-4, 1e-3, 2e-3)}
        study = self._tuned("MAE's learning rate", settings={"epochs": 20}, variants=rates)
        (lines,) = self._run({"mae-lr": study})
        rate = rates[best(lines, rates)]
        epochs = self._epochs(settings, rate)
        measures = {name: one for name, one in MEASURES.items() if one.method != "learnt"}
        study = Study(
            title="Beside the headline", question="What do others give?", recipe=RECIPE,
            variants={"mae": {**rate, "epochs": epochs}, "first look": FIRST_LOOK},
            seeds=SEEDS[:2], measures=measures, gauges=GAUGES,
        )  # fmt: skip
        self._run({"beside": study})

    def floor(self, which: str) -> None:
        """The same measures of what was never trained."""
        measures = {
            name: one.model_copy(update={"options": {**one.options, "encoder": which}})
            for name, one in MEASURES.items()
            if one.method != "learnt"
        }
        study = Study(
            title="Without training", question="What does an encoder have to be better than?",
            recipe=RECIPE, settings={"epochs": None, "steps": 1, "batch_size": 64},
            variants={which: SINCOS}, seeds=SEEDS[:1], measures=measures,
        )  # fmt: skip
        self._run({which: study})

    def _epochs(self, settings: Mapping[str, Any], mae: Mapping[str, Any]) -> int:
        """Of MAE, in the time of I-JEPA's; measured once."""
        kept = self.out / "mae-epochs.json"
        if not kept.exists():
            found = {}
            for name, values in (("ijepa", settings), ("mae", mae)):
                chosen = settings_from(dict(values), recipe=RECIPE)
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
    parser.add_argument("--until", default="all", choices=["tuned", "headline", "all"])
    parser.add_argument("--floor", choices=["pixels", "untrained"], help="only this row")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stages = Stages(given.out, given.jobs, given.device)
    if given.floor:
        stages.floor(given.floor)
        return
    settings, noise_std = stages.tuned()
    print(f"both arms: {settings}; StoP: noise_std {noise_std}", flush=True)
    if given.until == "tuned":
        return
    stages.headline(settings, noise_std)
    if given.until == "all":
        stages.beside(settings)


if __name__ == "__main__":
    main()
