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

DATA = "tiny-imagenet:train"
TUNED, RECIPE = "small/stop-vit-t8-64", "small/stop-vit-s8-64"
SINCOS = {"positions": "sincos", "noise_std": 0}
HELD_OUT = "held out, kNN"
EVEN = 0.1  # points: of settings that are this near to each other the milder is taken
WANTED = 36  # % of the 100 % probe
EPOCHS, LONGER = 60, 120  # the longer where the other does not reach what is wanted
SELDOM = {"log_every": 200, "gauge_every": 1000, "checkpoint_every": 5000}  # batches are small
BATCHES = {
    "batch 256": {"batch_size": 256, "lr": 7e-4, "ema": 0.995},
    "batch 128": {"batch_size": 128, "lr": 5e-4, "ema": 0.9975},
    "batch 64": {"batch_size": 64, "lr": 3.5e-4, "ema": 0.99875},
}
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


def changes(lr: float, ema: float) -> dict[str, dict[str, Any]]:
    """What is tried on the best batch."""
    return {
        "ema quicker": {"ema": round(1 - (1 - ema) * 2.5, 6)},
        "ema slower": {"ema": round(1 - (1 - ema) / 2.5, 6)},
        "lr twice": {"lr": 2 * lr},
        "layers 6": {"target_layers": 6},
        "flip": {"augment": "crop-flip"},
        "decay 0.05": {"weight_decay": 0.05, "weight_decay_final": 0.05},
    }


def together(
    lines: Sequence[Line], tried: Mapping[str, Mapping[str, Any]], bar: float
) -> dict[str, Any]:
    """Every change that scores above the bar; of two values of a setting the better."""
    found: dict[str, Any] = {}
    for name in sorted(tried, key=lambda name: _score(lines, name)):
        if _score(lines, name) > bar:
            found |= tried[name]
    return found


def mildest_best(lines: Sequence[Line], values: Mapping[str, float]) -> float:
    """The smallest value that is the best, or as good."""
    scores = {name: _score(lines, name) for name in values}
    best = max(scores.values())
    return min(values[name] for name, score in scores.items() if score > best - EVEN)


def _score(lines: Sequence[Line], variant: str) -> float:
    return estimate(list(values_of(lines, variant, HELD_OUT).values())).mean


def _headline(
    settings: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], seeds: Sequence[int]
) -> Study:
    return Study(
        title="StoP against sin-cos positions", question="Do noisy positions help?",
        recipe=RECIPE, settings=dict(settings), seeds=list(seeds), baseline="sincos",
        variants=dict(arms), measures=MEASURES, gauges=GAUGES,
    )  # fmt: skip


class Stages:
    def __init__(self, out: Path, jobs: int, device: str | None) -> None:
        self.out, self.jobs, self.device = out, jobs, device
        self.first = read_study("baseline")
        self.held_out = self.first.measures

    def _run(self, studies: Mapping[str, Study]) -> list[list[dict[str, Any]]]:
        """The lines of each; all at once."""
        planned = [
            Planned(one, trials(one, DATA), self.out / name) for name, one in studies.items()
        ]
        return run_studies(planned, jobs=self.jobs, device=self.device)

    def _tuning(
        self, title: str, settings: Mapping[str, Any], variants: Mapping[str, Any]
    ) -> Study:
        """A study of one seed by the held-out measure, of the small model and 20 epochs."""
        shared = {**SINCOS, "epochs": 20, "reference_batch_size": None, **SELDOM, **settings}
        return Study(
            title=title, question="Which is best on held-out training images?", recipe=TUNED,
            settings=shared, variants=dict(variants), measures=self.held_out, gauges=GAUGES,
        )  # fmt: skip

    def tuned(self) -> dict[str, Any]:
        """The settings of both arms: the best batch, with the changes that are good for it."""
        first, lines = self._run({
            "baseline": self.first, "batch": self._tuning("Smaller batches", {}, BATCHES)
        })  # fmt: skip
        lines = [*first, *lines]
        batches: dict[str, dict[str, Any]] = {"start": {}, **BATCHES}
        batch = best(lines, batches)
        recipe = settings_from(batches[batch], recipe=TUNED)
        tried = changes(recipe.lr, recipe.ema)
        study = self._tuning(f"Changes of {batch}", batches[batch], tried)
        (changed,) = self._run({"changes": study})
        found = {"none": {}, **tried}
        scores = {name: _score(changed, name) for name in tried} | {"none": _score(lines, batch)}
        if (all_of := together(changed, tried, scores["none"])) not in found.values():
            found["together"] = all_of
            study = self._tuning("Changes together", batches[batch], {"together": all_of})
            scores["together"] = _score(self._run({"together": study})[0], "together")
        winner = max(found, key=lambda name: scores[name])
        return {**batches[batch], **found[winner], "reference_batch_size": None, **SELDOM}

    def noise(self, settings: Mapping[str, Any]) -> tuple[float, int]:
        """StoP's noise_std, and how many epochs the headline has.

        Its first deterministic run is made beside the tuning: it says whether 60 are enough.
        """
        noises = {f"noise {std:g}": std for std in (0.05, 0.1, 0.25)}
        variants = {name: {"positions": "stop", "noise_std": x} for name, x in noises.items()}
        first = _headline({**settings, "epochs": EPOCHS}, {"sincos": SINCOS}, SEEDS[:1])
        lines, looked = self._run(
            {"noise": self._tuning("Tuning noise_std", settings, variants), "headline": first}
        )
        enough = estimate(list(values_of(looked, "sincos", "100 %").values())).mean >= WANTED
        return mildest_best(lines, noises), EPOCHS if enough else LONGER

    def headline(self, settings: Mapping[str, Any], noise_std: float, epochs: int) -> None:
        arms = {"sincos": SINCOS, "stop": {"positions": "stop", "noise_std": noise_std}}
        name = "headline" if epochs == EPOCHS else f"headline-{epochs}"
        self._run({name: _headline({**settings, "epochs": epochs}, arms, SEEDS)})

    def beside(self, settings: Mapping[str, Any]) -> None:
        """MAE with a learning rate of its own, for as many GPU minutes as a headline run.

        And I-JEPA as it was first looked at, untuned.
        """
        rates = {f"lr {lr:g}": {**MAE, "lr": lr} for lr in (5e-4, 1e-3, 2e-3)}
        (lines,) = self._run({"mae-lr": self._tuning("MAE's learning rate", {}, rates)})
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
    parser.add_argument("--until", default="all", choices=["tuned", "noise", "headline", "all"])
    parser.add_argument("--floor", choices=["pixels", "untrained"], help="only this row")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stages = Stages(given.out, given.jobs, given.device)
    if given.floor:
        stages.floor(given.floor)
        return
    settings = stages.tuned()
    print(f"both arms: {settings}", flush=True)
    if given.until == "tuned":
        return
    noise_std, epochs = stages.noise(settings)
    print(f"StoP: noise_std {noise_std}; {epochs} epochs", flush=True)
    if given.until == "noise":
        return
    stages.headline(settings, noise_std, epochs)
    if given.until == "all":
        stages.beside({**settings, "epochs": epochs})


if __name__ == "__main__":
    main()
