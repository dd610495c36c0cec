"""Studies, and the trials they are made of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexpredict.api.evaluation import boxes, finetune, knn, logistic, probe, shifts, video
from flexpredict.api.pretraining import pretrain
from flexpredict.engine.distributed import device_name, pick_device
from flexpredict.health.diagnosis import read_metrics


def run_study(
    name: str,
    out: str | Path = "study",
    *,
    data: str | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int = 1,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """Runs variants × seeds, evaluates each, and tabulates; what is done already is skipped.

    name: of a study that comes with the package, or a YAML file.
    seeds: others than the study's. jobs: how many runs at once.
    """
    from flexpredict.study import run
    from flexpredict.study.plan import read_study, trials

    plan = read_study(name)
    images = data or plan.data
    if images is None:
        raise ValueError(f"study {name} names no images: say which with --data")
    todo = trials(plan, images, seeds)
    return run.run_study(plan, todo, Path(out), jobs=jobs, device=device)


def make_trial(order: Mapping[str, Any], device: str | None = None) -> dict[str, Any]:
    """A run of a study and what is measured of it."""
    run, settings = Path(order["run"]), dict(order["settings"])
    images = settings.pop("data")
    pretrain(images, run, resume=True, device=device, **settings)
    found: dict[str, Any] = {}
    methods: dict[str, Any] = {
        "probe": probe, "logistic": logistic, "knn": knn, "finetune": finetune, "video": video,
        "boxes": boxes, "shifts": shifts, "learnt": _learnt,
    }  # fmt: skip
    known: dict[str, Mapping[str, Any]] = {}  # several numbers may come from one evaluation
    for name, measure in order["measures"].items():
        method, options = measure["method"], measure["options"]
        if (same := f"{method} {options}") not in known:
            known[same] = _numbers(methods[method](run, device=device, **options))
        if measure["key"] not in known[same]:
            raise ValueError(
                f"{method} gives no {measure['key']!r}: measure {name} can have "
                f"{', '.join(known[same])}"
            )
        found[name] = known[same][measure["key"]]
    last = read_metrics(run)[-1]
    found |= {name: last.get(name) for name in order["gauges"]}
    return {"found": found, "seconds": last["seconds"], "device": device_name(pick_device(device))}


def _numbers(found: Any) -> Mapping[str, Any]:
    """Of an evaluation, with or without what else came with it."""
    if isinstance(found, Mapping):
        return found
    return (found[0] if isinstance(found, tuple) else found).result


def _learnt(run: Path, device: str | None = None) -> Mapping[str, float]:
    from flexpredict.report.learnt import learnt  # draws figures elsewhere: slow to import
    from flexpredict.report.runs import read_run

    return learnt(read_run(run, device=str(pick_device(device))))
