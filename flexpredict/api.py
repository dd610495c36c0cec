"""What people call from Python; the command line calls the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from flexpredict import build
from flexpredict.config import Settings, read_settings, settings_from
from flexpredict.data.inspect import inspect
from flexpredict.data.sources import Source, open_source
from flexpredict.data.sources.davis import open_davis
from flexpredict.data.sources.scene_videos import scene_video_folder
from flexpredict.data.sources.subset import SubsetSource
from flexpredict.engine.distributed import device_name, pick_device, processes
from flexpredict.engine.encoders import Which, load_encoder
from flexpredict.evaluate import frozen, results
from flexpredict.evaluate.boxes import box_probe, open_boxes
from flexpredict.evaluate.features import cached, size_for
from flexpredict.evaluate.online import OnlineProbe
from flexpredict.evaluate.results import Evaluation
from flexpredict.evaluate.shifts import DISTANCES, shift_probe
from flexpredict.evaluate.subject import Subject
from flexpredict.evaluate.tasks import VIDEO_TASKS, Labelled, open_task
from flexpredict.evaluate.tuned import evaluate_finetune
from flexpredict.evaluate.video import Following, evaluate_videos
from flexpredict.health.diagnosis import Diagnosis, diagnose, read_metrics
from flexpredict.health.reference import Reading, readings
from flexpredict.model.masking import MaskSampler
from flexpredict.model.vit import Encoder, Resize, Size
from flexpredict.train import loop
from flexpredict.train.loop import CONFIG, Result
from flexpredict.train.monitor import Tally, say
from flexpredict.train.track import check_track

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flexpredict.demonstration import Demo
    from flexpredict.interop.account import Account
    from flexpredict.interop.baselines import Pool
    from flexpredict.interop.exporting import Exported, Target
    from flexpredict.interop.forensics import Finding
    from flexpredict.interop.graph import Output
    from flexpredict.interop.importing import Method
    from flexpredict.report.gallery import Gallery
    from flexpredict.report.runs import Run

_MEASURED = 2000  # images whose channels are measured, at most

Encoders = Literal["target", "context", "untrained"]
Data = str | Path | Source | NDArray[np.uint8]


class Features(NamedTuple):
    features: NDArray[np.float32]  # (images, D · layers)
    names: list[str]
    labels: NDArray[np.int64] | None
    classes: list[str]


def pretrain(
    data: Data | None = None,
    out: str | Path = "run",
    *,
    recipe: str | None = None,
    resume: bool = False,
    device: str | None = None,
    track: str | None = None,
    **settings: Any,
) -> Result:
    """Pretrains an encoder on images and writes a run folder.

    data: a folder of images of any depth, a list or CSV of paths, tar shards, packed files,
        `scenes` for the embedded ones, `tiny-imagenet` and such in the folder that
        FLEXPREDICT_DATA names, or a uint8 array.
    recipe: the name of a recipe that comes with the package, `name@variant`, or a YAML file.
    resume: goes on with the run in `out`; starts it where there is none.
    track: `tensorboard` or `wandb`, where metrics go besides metrics.jsonl.
    settings: any names of `fp.Settings`, over those of the recipe.
    """
    if data is not None:  # what is given wins over what a recipe names
        settings["data"] = str(data) if isinstance(data, str | Path) else None
    chosen = settings_from(settings, recipe=recipe)
    images = chosen.data if data is None else data
    if images is None:
        raise ValueError("no images were named: give a folder, a list, or `scenes` for our own")
    tracker = None if track is None else check_track(track)
    with processes(device) as ranks:
        size, progress = build.image_size(chosen)[0], Tally("scenes") if ranks.is_main else None
        source = open_source(images, image_size=size, progress=progress)
        chosen = _with_statistics(chosen, source, Path(out) / CONFIG)
        probe = None
        if chosen.probe_data is not None and ranks.is_main:
            labelled = open_source(chosen.probe_data, image_size=size, progress=progress)
            probe = OnlineProbe(labelled, build.image_size(chosen), chosen.in_channels)
        return loop.train(
            chosen, source, Path(out), ranks, resume=resume, probe=probe, track=tracker
        )


class Checkup(NamedTuple):
    diagnosis: Diagnosis
    gauges: list[Reading]


def doctor(run: str | Path) -> Checkup:
    """Whether a run is well, finished or not, and what its gauges say beside healthy runs."""
    run = Path(run)
    if not (run / CONFIG).is_file():
        raise ValueError(f"{run} is no run: expected a folder with {CONFIG}")
    settings, lines = read_settings(run / CONFIG), read_metrics(run)
    if not lines:
        raise ValueError(f"{run} has logged nothing yet: there is nothing to judge it by")
    return Checkup(diagnose(settings, lines), readings(settings, lines))


def _with_statistics(settings: Settings, source: Source, before: Path) -> Settings:
    """Mean and standard deviation of each channel, where nobody said and nobody can know them.

    A run that goes on keeps those it began with. For three channels they are ImageNet's.
    """
    if settings.in_channels == 3 or settings.mean is not None or settings.std is not None:
        return settings
    if before.is_file() and (begun := read_settings(before)).in_channels == settings.in_channels:
        return settings.model_copy(update={"mean": begun.mean, "std": begun.std})
    rows = np.unique(np.linspace(0, len(source) - 1, _MEASURED).astype(np.int64))
    found = inspect(SubsetSource(source, rows), channels=settings.in_channels, workers=1)
    if found.mean is None or found.std is None:
        return settings  # nothing can be decoded: training will say so
    std = tuple(max(value, 1 / 255) for value in found.std)  # of one grey level at least
    return settings.model_copy(update={"mean": tuple(found.mean), "std": std})


def load(path: str | Path, encoder: Which = "target", device: str | None = None) -> Encoder:
    """The encoder of a run: the target encoder, or `encoder="context"` for the other."""
    from flexpredict.interop.baselines import load_baseline

    found = load_baseline(_folder(path), encoder) or load_encoder(Path(path), encoder)
    return found.to(pick_device(device or "cpu"))


def import_weights(
    source: str | Path,
    out: str | Path,
    *,
    encoder: Which | None = None,
    method: "Method | None" = None,
    model: str | None = None,
    image_size: Size | None = None,
    resize: Resize | None = None,
    pool: "Pool | None" = None,
) -> "Account":
    """Makes a run folder of the weights of others; gives an account of every key.

    source: a released I-JEPA or StoP checkpoint, what `export` wrote, a timm state dict, or a model
        folder of Hugging Face or timm. Nothing in it is executed.
    encoder: of a file with two, target by default; of a file with one, what it is.
    method, model: what the file does not tell, or is expected to be.
    image_size: other than trained at; position tables are then made by `resize`.
    pool: wraps a model folder of transformers (MAE, DINOv2, BEiT, …) as a baseline, with an image
        as its mean patch token, its class token, or both.
    """
    if pool is not None:
        from flexpredict.interop.baselines import import_baseline

        return import_baseline(Path(source), Path(out), pool, encoder)
    from flexpredict.interop.files import read_foreign
    from flexpredict.interop.folders import check_empty
    from flexpredict.interop.importing import convert, write_run

    check_empty(Path(out))
    say(f"reading {source}")
    found = convert(
        read_foreign(Path(source)),
        encoder=encoder,
        method=method,
        model=model,
        image_size=image_size,
        resize=resize,
    )
    say(f"every key fits; writing {out}")
    write_run(found, Path(out), Path(source))
    return found.account


def export(
    run: str | Path,
    out: str | Path,
    to: "Target",
    *,
    encoder: Which = "target",
    output: "Output" = "features",
    dynamic_size: Resize | None = None,
    licence: str | None = None,
) -> "Exported":
    """Writes a run's encoder for timm, huggingface or onnx, or the whole run for torch.

    The outputs of both are compared on the same images; an export that differs is not kept.

    output: of an ONNX graph, features (B, D) or maps (B, D, h, w).
    dynamic_size: an ONNX graph takes any size, and makes positions in this way.
    licence: of the weights, for the model card.
    """
    from flexpredict.interop import exporting

    return exporting.export(
        _folder(run),
        Path(out),
        to,
        which=encoder,
        output=output,
        dynamic_size=dynamic_size,
        licence=licence,
        told=say,
    )


def push(folder: str | Path, to: str, *, private: bool = False) -> str:
    """Uploads an exported folder to the Hugging Face hub as `owner/name`, or copies it to a path
    (one that begins with ., / or ~); gives its address."""
    from flexpredict.interop import hub

    return hub.push(Path(folder), to, private=private)


def pull(source: str, out: str | Path, *, revision: str | None = None) -> Path:
    """Downloads a model folder from the hub, or copies it from a path, for `import_weights`."""
    from flexpredict.interop import hub

    return hub.pull(source, Path(out), revision=revision)


def inspect_weights(source: str | Path) -> "list[Finding]":
    """What a released checkpoint tells about its training; nothing is loaded into a model."""
    from flexpredict.interop import files, forensics

    return forensics.inspect_weights(files.read_foreign(Path(source)))


def features(
    run: str | Path,
    data: Data,
    *,
    encoder: Encoders = "target",
    layers: int = 1,
    image_size: Size | None = None,
    resize: Resize = "recompute",
    device: str | None = None,
) -> Features:
    """Frozen features of every image: token means after the final norm, layers side by side."""
    model = _encoder(run, encoder, device)
    height = size_for(model, image_size)[0]
    source = open_source(data, image_size=height, progress=Tally("scenes"))
    found = cached(
        model,
        source,
        layers=layers,
        image_size=image_size,
        resize=resize,
        progress=Tally("features"),
    )
    return Features(
        found.numpy(),
        [source.name(index) for index in range(len(source))],
        source.labels,
        source.classes,
    )


class On(TypedDict, total=False):
    """What an encoder is evaluated on, the same for all evaluations.

    task: a named one, with its `data`; or any labelled images, as `data` or `train` and `test`.
    encoder: target, context, or untrained for the run's first weights.
    image_size: other than the encoder's own; positions are then made by `resize`.
    """

    task: str | None
    data: str | Path | None
    train: str | Path | None
    test: str | Path | None
    encoder: Encoders
    image_size: Size | None
    resize: Resize
    device: str | None


def probe(
    run: str | Path,
    *,
    protocol: str = "default",
    labels: str | float | None = None,
    layers: int | None = None,
    draws: int = 1,
    augment: bool | None = None,
    epochs: int | None = None,
    seed: int = 0,
    **on: Unpack[On],
) -> Evaluation:
    """Linear probes on frozen features; the result is also kept in the run's evaluations/.

    protocol: default, vissl-sgd, vissl-lars or ijepa.
    labels: all, a share (`"1%"`, 0.01), a number (`"13/class"`), or a file that lists images.
    layers: only heads on this many last layers. draws: how often the labels are drawn anew.
    augment, epochs: other than the protocol's.
    """
    subject, task = _open(run, labels, **on)
    found = frozen.probe(
        subject,
        task,
        protocol=protocol,
        labels=labels,
        layers=layers,
        draws=draws,
        augment=augment,
        epochs=epochs,
        seed=seed,
    )
    return _keep(run, found)


def logistic(
    run: str | Path,
    *,
    protocol: str = "default",
    labels: str | float | None = None,
    layers: int = 1,
    draws: int = 1,
    seed: int = 0,
    **on: Unpack[On],
) -> Evaluation:
    """L2 logistic regression to convergence; protocol: default, or released-1%."""
    subject, task = _open(run, labels, **on)
    found = frozen.logistic(
        subject, task, protocol=protocol, labels=labels, layers=layers, draws=draws, seed=seed
    )
    return _keep(run, found)


def knn(
    run: str | Path,
    *,
    labels: str | float | None = None,
    neighbours: int = 20,
    temperature: float = 0.07,
    layers: int = 1,
    draws: int = 1,
    seed: int = 0,
    **on: Unpack[On],
) -> Evaluation:
    """Weighted nearest neighbours, and a ridge probe in closed form."""
    subject, task = _open(run, labels, **on)
    found = frozen.knn(
        subject,
        task,
        labels=labels,
        neighbours=neighbours,
        temperature=temperature,
        layers=layers,
        draws=draws,
        seed=seed,
    )
    return _keep(run, found)


def shifts(
    run: str | Path,
    *,
    distances: Sequence[int] = DISTANCES,
    labels: str | float | None = None,
    seed: int = 0,
    **on: Unpack[On],
) -> Evaluation:
    """What features of an image are like when it moves by some pixels, and what that costs."""
    subject, task = _open(run, labels, **on)
    return _keep(run, shift_probe(subject, task, distances=distances, labels=labels, seed=seed))


def finetune(
    run: str | Path,
    *,
    preset: str = "small",
    settings: Mapping[str, Any] | None = None,
    labels: str | float | None = None,
    draws: int = 1,
    seed: int = 0,
    **on: Unpack[On],
) -> Evaluation:
    """Fine-tunes end to end by a preset, over which `settings` are laid."""
    subject, task = _open(run, labels, **on)
    found = evaluate_finetune(
        subject, task, preset=preset, settings=settings, labels=labels, draws=draws, seed=seed
    )
    return _keep(run, found)


def boxes(
    run: str | Path,
    *,
    data: str | Path,
    layers: int = 1,
    seed: int = 0,
    encoder: Encoders = "target",
    image_size: Size | None = None,
    resize: Resize = "recompute",
    device: str | None = None,
) -> Evaluation:
    """Ridge from frozen features to the box of the labelled object: mean IoU.

    data: packed files with the splits train and val and an array bbox, or a name of such.
    """
    subject = Subject(_encoder(run, encoder, device), encoder, image_size, resize, told=Tally)
    return _keep(run, box_probe(subject, open_boxes(data), layers=layers, seed=seed))


def video(
    run: str | Path,
    *,
    task: str = "davis2017",
    data: str | Path | None = None,
    out: str | Path | None = None,
    size: int | None = None,
    resize: Resize = "interpolate",
    only: list[str] | None = None,
    encoder: Encoders = "target",
    device: str | None = None,
) -> tuple[Evaluation, Path]:
    """Label propagation through videos; masks and overlays go to the folder that is returned."""
    if task not in VIDEO_TASKS:
        raise ValueError(f"task {task!r} is no video task: choose one of {', '.join(VIDEO_TASKS)}")
    model = _encoder(run, encoder, device)
    if task == "scenes-video":
        data = scene_video_folder(progress=Tally("videos"))
    elif data is None:
        raise ValueError(f"task {task} needs its data: say where they are with --data")
    videos = open_davis(Path(data), VIDEO_TASKS[task], only or None)
    usual = Following(size=None if task == "scenes-video" else Following().size)
    how = replace(usual, size=size or usual.size, resize=resize)
    variant = results.options(
        only=only or None,
        size=size,
        resize=None if resize == usual.resize else resize,
    )

    def masks(found: Evaluation) -> Path:
        return Path(out) if out else _folder(run) / results.FOLDER / f"{found.name}-masks"

    found = evaluate_videos(
        model,
        videos,
        task,
        how,
        which=encoder,
        variant=variant,
        out=masks,
        progress=Tally("frames"),
    )
    return _keep(run, found), masks(found)


def demo(
    out: str | Path = "demo-run", *, minutes: float = 5, seed: int = 0, device: str | None = None
) -> "Demo":
    """Pretrains with and without StoP on the embedded scenes, probes both and writes a report."""
    from flexpredict.demonstration import (
        run_demo,  # draws figures: nobody else has to wait for matplotlib
    )

    return run_demo(Path(out), minutes=minutes, seed=seed, device=device)


def figures(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "figures",
    *,
    data: Data | None = None,
    only: Sequence[str] | None = None,
    formats: Sequence[str] = ("png", "svg"),
    device: str | None = None,
) -> "Gallery":
    """Draws the paper's figures and more from runs, and writes the numbers behind them.

    data: images for the figures that need some; by default those of the first run that says which.
    only: names of figures; by default all that these runs allow. `skipped` says why one is missing.
    """
    from flexpredict.report import gallery  # nobody else has to wait for matplotlib

    opened = _read_runs(runs, device)
    gallery.check_folder(Path(out), formats)
    found = _draw(opened, data, only)
    gallery.write_figures(found, opened, Path(out), formats)
    return found


def draw_coverage(samplers: Mapping[str, MaskSampler]) -> "Figure":
    """How often mask samplers show each patch, and how often they ask for it: a row for each."""
    from flexpredict.report.analysis.masks import coverage
    from flexpredict.report.figures.masks import mask_coverage

    return mask_coverage({name: coverage(sampler) for name, sampler in samplers.items()})


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    data: Data | None = None,
    device: str | None = None,
) -> Path:
    """One self-contained page about runs, side by side; gives its path.

    out: by default report.html in the folder of a single run, else in the current folder.
    data: as for `figures`.
    """
    from flexpredict.report import run_page
    from flexpredict.report.judged import bands_of, verdict_of

    opened = _read_runs(runs, device)
    folder = opened[0].path if len(opened) == 1 else Path()
    path = folder / "report.html" if out is None else Path(out)
    run_page.check_page(path)
    drawn = _draw(opened, data, None)
    bands, verdicts = bands_of(opened), {run.name: verdict_of(run) for run in opened}
    run_page.write_run_page(path, opened, drawn, bands=bands, verdicts=verdicts)
    return path


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
        "boxes": boxes, "shifts": shifts,
    }  # fmt: skip
    known: dict[str, Mapping[str, Any]] = {}  # several numbers may come from one evaluation
    for name, measure in order["measures"].items():
        method, options = measure["method"], measure["options"]
        if (same := f"{method} {options}") not in known:
            result = methods[method](run, device=device, **options)
            known[same] = (result[0] if isinstance(result, tuple) else result).result
        if measure["key"] not in known[same]:
            raise ValueError(
                f"{method} gives no {measure['key']!r}: measure {name} can have "
                f"{', '.join(known[same])}"
            )
        found[name] = known[same][measure["key"]]
    last = read_metrics(run)[-1]
    found |= {name: last.get(name) for name in order["gauges"]}
    return {"found": found, "seconds": last["seconds"], "device": device_name(pick_device(device))}


def _read_runs(runs: str | Path | Sequence[str | Path], device: str | None) -> list["Run"]:
    from flexpredict.report.runs import read_runs

    several = [runs] if isinstance(runs, str | Path) else runs
    return read_runs([Path(run) for run in several], str(pick_device(device)))


def _draw(runs: list["Run"], data: Data | None, only: Sequence[str] | None) -> "Gallery":
    from flexpredict.report.gallery import draw_figures
    from flexpredict.report.images import find_images

    images = find_images(runs, data, progress=Tally("scenes"))
    return draw_figures(runs, images, only, progress=Tally("figures"))


def _open(
    run: str | Path, labels: str | float | None, **on: Unpack[On]
) -> tuple[Subject, Labelled]:
    """An encoder and what it is evaluated on."""
    which, size = on.get("encoder", "target"), on.get("image_size")
    model = _encoder(run, which, on.get("device"))
    task = open_task(
        on.get("task"),
        data=on.get("data"),
        train=on.get("train"),
        test=on.get("test"),
        listed=labels is None,
        image_size=max(size_for(model, size)),
        progress=Tally("scenes"),
    )
    return Subject(model, which, size, on.get("resize", "recompute"), told=Tally), task


def _keep(run: str | Path, found: Evaluation) -> Evaluation:
    results.write(_folder(run), found)
    return found


def _encoder(run: str | Path, encoder: Encoders, device: str | None) -> Encoder:
    """A run's encoder on the device that evaluations use."""
    if encoder == "untrained":
        config = _folder(run) / CONFIG
        if not config.is_file():
            raise ValueError(f"{run} has no {CONFIG}: its untrained encoder cannot be made again")
        return build.build_encoder(read_settings(config)).eval().to(pick_device(device))
    return load(run, encoder).to(pick_device(device))


def _folder(run: str | Path) -> Path:
    return Path(run).parent if Path(run).is_file() else Path(run)
