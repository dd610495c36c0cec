"""Studies, and the trials they are made of."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexpredict import build
from flexpredict.api.evaluation import (
    boxes,
    finetune,
    knn,
    logistic,
    probe,
    shifts,
    video,
)
from flexpredict.api.options import check_options, check_values
from flexpredict.api.pretraining import doctor, pretrain
from flexpredict.data.sources import open_source
from flexpredict.engine.distributed import device_name, pick_device
from flexpredict.evaluate.boxes import open_boxes
from flexpredict.evaluate.labels import Budget
from flexpredict.evaluate.shifts import DISTANCES
from flexpredict.evaluate.tasks import open_task
from flexpredict.progress import Tally, say
from flexpredict.run_folder import read_metrics

if TYPE_CHECKING:
    from flexpredict.study.plan import Measure, Study, Trial


def run_study(
    name: str | Sequence[str],
    out: str | Path = "study",
    *,
    data: str | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int = 1,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """Runs variants × seeds, evaluates each, and tabulates; what is done already is skipped.

    Gives the lines of all trials of the study's seeds, and of those asked for, that are done.

    name: of a study that comes with the package, or a YAML file. Several get a folder each below
        `out`, and share the runs that more than one of them asks for.
    seeds: others than the study's. jobs: how many runs at once.
    """
    from flexpredict.study import run
    from flexpredict.study.plan import read_study, trials

    pick_device(device)  # or says why not, before anything is begun
    names = [name] if isinstance(name, str) else list(name)
    several, planned = len(names) > 1, []
    for one in names:
        study = read_study(one)
        images = data or study.data
        if images is None:
            raise ValueError(f"study {one} names no images: say which with --data")
        folder = Path(out) / Path(one).stem if several else Path(out)
        todo = trials(study, images, seeds)
        others = [one for one in trials(study, images) if one not in todo]
        planned.append(run.Planned(study, todo, folder, others))
    if len({one.out for one in planned}) < len(planned):
        raise ValueError(f"two studies have the same name among {', '.join(names)}")
    runs = Path(out) / "runs" if several else None
    found = run.run_studies(planned, runs=runs, jobs=jobs, device=device, check=_check)
    return [line for lines in found for line in lines]


def _check(study: "Study", todo: "Sequence[Trial]") -> None:
    """All images can be opened and all options are known, before hours go into training."""
    size = build.image_size(todo[0].settings)[0]
    for name, measure in study.measures.items():
        _check_options(name, measure)
    for data in dict.fromkeys(trial.settings.data for trial in todo):
        open_source(str(data), image_size=size, progress=Tally("scenes"))
    opened = set()
    for measure in study.measures.values():
        task, data, train, test, labels = map(
            measure.options.get, ("task", "data", "train", "test", "labels")
        )
        where = (measure.method == "boxes", task, data, train, test, labels is None)
        if measure.method in ("video", "learnt") or where in opened:
            continue
        opened.add(where)
        if measure.method == "boxes":
            if data is None:
                raise ValueError("boxes need their images: say where they are with data")
            open_boxes(str(data))
        else:
            open_task(
                task, data=data, train=train, test=test, listed=labels is None, image_size=size,
                progress=Tally("scenes"),
            )  # fmt: skip


def _check_options(name: str, measure: "Measure") -> None:
    try:
        check_options(_METHODS[measure.method], measure.options)
        check_values(measure.options)
    except ValueError as error:
        raise ValueError(f"measure {name}: {error}") from None
    if "device" in measure.options:
        raise ValueError(f"measure {name}: the device is the whole study's, by --device")
    if (labels := measure.options.get("labels")) is not None:
        Budget.parse(labels)
    if measure.key not in (gives := numbers_of(measure)):
        raise ValueError(
            f"measure {name}: {measure.method} gives no {measure.key!r}: choose one of "
            f"{', '.join(gives)}"
        )


def numbers_of(measure: "Measure") -> list[str]:
    """What a measure may have as its key."""
    if measure.method == "shifts":
        far = measure.options.get("distances", DISTANCES)
        return ["accuracy", *(f"{name}_{d}" for name in ("accuracy", "likeness") for d in far)]
    spread = measure.options.get("draws", 1) != 1
    return [name for name in _NUMBERS[measure.method].split() if spread or name != "std"]


def make_trial(order: Mapping[str, Any], device: str | None = None) -> dict[str, Any]:
    """A run of a study and what is measured of it, in the order of the measures."""
    run, settings = Path(order["run"]), dict(order["settings"])
    images = settings.pop("data")
    pretrain(images, run, resume=True, device=device, **settings)
    known: dict[str, Mapping[str, Any]] = {}  # several numbers may come from one evaluation
    found = []
    for measure in order["measures"]:
        began = time.monotonic()
        try:
            found.append(_measured(run, measure, device, known))
        except Exception as error:  # others may have asked for the rest, and the run is made
            found.append({"error": str(error) or type(error).__name__})
        say(f"{run.name}: {measure['name']} took {time.monotonic() - began:.1f} s")  # to the log
    last = read_metrics(run)[-1]
    return {
        "measures": found,
        "gauges": {name: last.get(name) for name in order["gauges"]},
        "verdict": doctor(run).diagnosis.verdict,
        "seconds": last["seconds"],
        "device": device_name(pick_device(device)),
    }


def _measured(
    run: Path, measure: Mapping[str, Any], device: str | None, known: dict[str, Mapping[str, Any]]
) -> Any:
    method, options, key = measure["method"], measure["options"], measure["key"]
    if (same := f"{method} {options}") not in known:
        known[same] = _numbers(_METHODS[method](run, device=device, **options))
    if key not in known[same]:  # what the method gives has been asked for, but not of every run
        say(f"{run.name}: {method} gives no {key!r} of it, but {', '.join(known[same])}")
    return known[same].get(key)


def _numbers(found: Any) -> Mapping[str, Any]:
    """Of an evaluation, with or without what else came with it."""
    if isinstance(found, Mapping):
        return found
    return (found[0] if isinstance(found, tuple) else found).result


def _learnt(run: Path, device: str | None = None) -> Mapping[str, float]:
    from flexpredict.report.learnt import learnt  # draws figures elsewhere: slow to import
    from flexpredict.report.runs import read_run

    return learnt(read_run(run, device=str(pick_device(device))))


_NUMBERS = {
    "probe": "accuracy std held_out",  # std: of several draws
    "logistic": "accuracy std after_100_iterations",  # the latter: of protocol released-1%
    "knn": "accuracy std ridge",
    "finetune": "accuracy std best_epoch_accuracy",
    "video": "J&F J J_recall J_decay F F_recall F_decay",
    "boxes": "iou iou_over_50 mean_box_iou mean_box_iou_over_50",
    "learnt": "effective_rank rank_kept own_beginning short_waves own_place displaced "
    "neighbourhood_mass look",
}
_METHODS: dict[str, Any] = {
    "probe": probe, "logistic": logistic, "knn": knn, "finetune": finetune, "video": video,
    "boxes": boxes, "shifts": shifts, "learnt": _learnt,
}  # fmt: skip
