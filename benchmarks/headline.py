"""The headline comparison of docs/plan.md: what a stage finds decides what the next one runs.

    FLEXPREDICT_DATA=… python benchmarks/headline.py results/ [STAGE …] [--with STUDY …]

Stages, by default all: tuned, headline, beside, longer, long-headline, paper-noise, and the floors
pixels and untrained. They are studies, each in a folder of its own: the headline's first, then all
others at once, and with either the STUDYs that ship. What is done is skipped, also where only its
results.jsonl is there; after a signal the same command goes on.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexpredict.bench import bench
from flexpredict.config import settings_from
from flexpredict.engine.distributed import pick_device
from flexpredict.study.plan import Measure, Study, read_study, trials
from flexpredict.study.run import Planned, read_results, run_studies, write_results
from flexpredict.study.tables import Line, estimate, values_of
from flexpredict.train.loop import Interrupted

DATA = "tiny-imagenet:train"
TUNED, RECIPE = "small/stop-vit-t8-64", "small/stop-vit-s8-64"
SINCOS = {"positions": "sincos", "noise_std": 0}
HELD_OUT = "held out, kNN"
EVEN = 0.1  # points: of settings that are this near to each other the milder is taken
TUNING, EPOCHS = 20, 40
PAPER_NOISE = 0.25
# Batches are small, and several runs share the machine: without effect on what is learnt.
LIGHT = {"gauge_every": 1000, "checkpoint_every": 5000, "workers": 3}
BATCH = "batch 256"  # the variant of baseline-2 that others change
SEEDS = [20, 21, 22, 23, 24]
LONG, LONG_SEEDS = 100, [30, 31, 32, 33, 34]  # epochs, of the second headline
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
UNTUNED = {"context_scale": [0.85, 1], "target_layers": 1}
FIRST_LOOK = {
    **SINCOS, **UNTUNED, "batch_size": 1024, "reference_batch_size": None, "ema": 0.996,
    "augment": "crop-flip", "lr": 1e-3, "epochs": 60,
}  # fmt: skip
MAE = {"objective": "mae", **SINCOS}
FINER = 2.0  # points by which the finer grid has to be better
LONGER = {"8×8": {"epochs": 200}, "16×16": {"patch_size": 4, "epochs": 50}}
FLOORS = ("pixels", "untrained")
STAGES = ("tuned", "headline", "beside", "longer", "long-headline", "paper-noise", *FLOORS)
Studies = dict[str, Study]  # by the names of their folders


def best(lines: Sequence[Line], names: Iterable[str]) -> str:
    """The variant that scores highest; of equal ones the first."""
    return max(names, key=lambda name: _score(lines, name))


def mildest_best(lines: Sequence[Line], values: Mapping[str, float]) -> float:
    """The smallest value that is the best, or as good."""
    scores = {name: _score(lines, name) for name in values}
    best = max(scores.values())
    return min(values[name] for name, score in scores.items() if score > best - EVEN)


def first_ema(ema: float, epochs: int = EPOCHS) -> float:
    """That looks back over the same share of a run as of the tuning's."""
    return round(1 - (1 - ema) * TUNING / epochs, 6)


def _score(lines: Sequence[Line], variant: str) -> float:
    return estimate(list(values_of(lines, variant, HELD_OUT).values())).mean


class Stages:
    """Each stage makes what it has to know first, and gives the studies that it is about."""

    def __init__(self, out: Path, jobs: int, device: str | None) -> None:
        self.out, self.jobs, self.device = out, jobs, device
        self.tuning = read_study("baseline-2")

    def run(self, studies: Studies) -> list[list[dict[str, Any]]]:
        """The lines of each; all at once."""
        planned = [
            Planned(one, trials(one, DATA), self.out / name) for name, one in studies.items()
        ]
        return run_studies(planned, jobs=self.jobs, device=self.device)

    def _tuning(
        self,
        title: str,
        settings: Mapping[str, Any],
        variants: Mapping[str, Any],
        recipe: str = TUNED,
    ) -> Study:
        """A study of one seed by the held-out measure and of 20 epochs."""
        shared = {
            **SINCOS, "epochs": TUNING, "reference_batch_size": None, **UNTUNED, **LIGHT, **settings
        }  # fmt: skip
        return Study(
            title=title, question="Which is best on held-out training images?", recipe=recipe,
            settings=shared, variants=dict(variants), measures=self.tuning.measures, gauges=GAUGES,
        )  # fmt: skip

    def tuned(self) -> tuple[dict[str, Any], float]:
        """The settings of both arms: the batch with the change that is best for it.

        And StoP's noise_std, which is tuned without it.
        """
        variants = self.tuning.variants
        noises = {f"noise {std:g}": std for std in (0.05, 0.1, 0.25)}
        arms = {name: {"positions": "stop", "noise_std": x} for name, x in noises.items()}
        noisy, lines = self.run({
            "noise": self._tuning("Tuning noise_std", variants[BATCH], arms),
            "baseline-2": self.tuning,
        })  # fmt: skip
        found = variants[best(lines, (name for name in variants if name.startswith(BATCH)))]
        layers = {f"layers {n}": {"target_layers": n} for n in (1, 6)}
        study = self._tuning("Target layers of the larger model", found, layers, RECIPE)
        (lines,) = self.run({"layers": study})
        settings = {**found, **layers[best(lines, layers)], "reference_batch_size": None, **LIGHT}
        return settings, mildest_best(noisy, noises)

    def headline(self, settings: Mapping[str, Any], noise_std: float) -> Studies:
        return {"headline": self._pairs(settings, {"stop": noise_std})}

    def paper_noise(self, settings: Mapping[str, Any]) -> Studies:
        """StoP with the paper's noise against the headline's own runs of sin-cos positions."""
        folder = self.out / "paper-noise"
        if not read_results(folder):
            lines = [x for x in read_results(self.out / "headline") if x["variant"] == "sincos"]
            folder.mkdir(exist_ok=True)
            write_results(folder, lines)
        return {"paper-noise": self._pairs(settings, {"stop 0.25": PAPER_NOISE})}

    def _pairs(
        self,
        settings: Mapping[str, Any],
        noises: Mapping[str, float],
        epochs: int = EPOCHS,
        seeds: Sequence[int] = SEEDS,
    ) -> Study:
        arms = {name: {"positions": "stop", "noise_std": std} for name, std in noises.items()}
        length = {"epochs": epochs, "ema": first_ema(settings["ema"], epochs)}
        return Study(
            title="StoP against sin-cos positions", question="Do noisy positions help?",
            recipe=RECIPE, settings={**settings, **length}, seeds=list(seeds),
            baseline="sincos", measures=MEASURES, gauges=GAUGES,
            variants={"sincos": SINCOS, **arms},
        )  # fmt: skip

    def beside(self, settings: Mapping[str, Any]) -> Studies:
        """MAE with a learning rate of its own, for as many GPU minutes as a headline run.

        And I-JEPA as it was first looked at, untuned.
        """
        rates = {f"lr {lr:g}": {**MAE, "lr": lr} for lr in (5e-4, 1e-3, 2e-3)}
        (lines,) = self.run({"mae-lr": self._tuning("MAE's learning rate", {}, rates)})
        rate = rates[best(lines, rates)]
        epochs = self._epochs(settings, rate)
        measures = {name: one for name, one in MEASURES.items() if one.method != "learnt"}

        def study(variant: str, values: Mapping[str, Any], seeds: Sequence[int]) -> Study:
            return Study(
                title="Beside the headline", question="What do others give?", recipe=RECIPE,
                variants={variant: dict(values)}, seeds=list(seeds), measures=measures,
                gauges=GAUGES,
            )  # fmt: skip

        return {
            "beside": study("first look", FIRST_LOOK, SEEDS[:1]),
            "beside-mae": study("mae", {**rate, "epochs": epochs}, SEEDS[:2]),
        }

    def longer(self, settings: Mapping[str, Any]) -> Studies:
        """One long run of the baseline, on the finer grid if that is clearly better."""
        (lines,) = self.run({"grid": read_study("grid")})
        gain = _score(lines, "16×16") - _score(lines, "8×8")
        grid = "16×16" if gain >= FINER else "8×8"
        length = LONGER[grid]
        more = {"ema": first_ema(settings["ema"], length["epochs"])}
        study = Study(
            title="A longer baseline", question="How good is it at length?", recipe=RECIPE,
            settings={**self._at_length(settings), **SINCOS, **more}, variants={grid: length},
            seeds=SEEDS[:1], measures=MEASURES, gauges=GAUGES,
        )  # fmt: skip
        return {"longer": study}

    def long_headline(self, settings: Mapping[str, Any]) -> Studies:
        """Pairs of the longer baseline's settings, with the paper's noise."""
        study = self._pairs(self._at_length(settings), {"stop": PAPER_NOISE}, LONG, LONG_SEEDS)
        return {"long-headline": study}

    def _at_length(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """With flips; and half the learning rate, which was tuned on a smaller model, if better."""
        name, half = "half the rate", {"lr": settings["lr"] / 2}
        title = "Learning rate of the larger model"
        (lines,) = self.run({"rate": self._tuning(title, settings, {name: half}, RECIPE)})
        layers = read_results(self.out / "layers")
        whole = _score(layers, f"layers {settings['target_layers']}")
        better = half if _score(lines, name) > whole else {}
        return {**settings, "augment": "crop-flip", **better}

    def floor(self, which: str) -> Studies:
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
        return {which: study}

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
        return int(json.loads(kept.read_text("utf-8"))["epochs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--device")
    parser.add_argument("--with", dest="others", nargs="*", default=[], help="beside the stages")
    given = parser.parse_args()
    if unknown := set(given.stages) - set(STAGES):
        parser.error(f"no stage {unknown.pop()!r}: choose from {', '.join(STAGES)}")
    asked = given.stages or STAGES
    if given.others and set(asked) == {"tuned"}:
        parser.error("--with is for studies beside other stages than tuned")
    given.out.mkdir(parents=True, exist_ok=True)
    stages = Stages(given.out, given.jobs, given.device)
    others = {name: read_study(name) for name in given.others}
    beside: Studies = {}
    if set(asked) - set(FLOORS):
        settings, noise_std = stages.tuned()
        print(f"both arms: {settings}; StoP: noise_std {noise_std}", flush=True)
    if "headline" in asked:
        stages.run(stages.headline(settings, noise_std) | others)
    if "beside" in asked:
        beside |= stages.beside({**settings, "epochs": EPOCHS})
    if "longer" in asked:
        beside |= stages.longer(settings)
    if "long-headline" in asked:
        beside |= stages.long_headline(settings)
    if "paper-noise" in asked:
        beside |= stages.paper_noise(settings)
    for which in FLOORS:
        if which in asked:
            beside |= stages.floor(which)
    if beside:
        stages.run(beside | others)


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stopped:
        print(stopped, flush=True)
        sys.exit(Interrupted.EXIT_CODE)
