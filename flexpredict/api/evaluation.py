"""Features of encoders, and every way to judge them."""

import errno
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from flexpredict import build
from flexpredict.api.options import Encoders, On, check_options, check_values
from flexpredict.api.pretraining import Data, folder_of, load
from flexpredict.config import read_settings
from flexpredict.data.sources import open_source
from flexpredict.data.sources.davis import open_davis
from flexpredict.data.sources.scene_videos import scene_video_folder
from flexpredict.engine.distributed import pick_device, raised_by_sigterm
from flexpredict.evaluate import frozen, results
from flexpredict.evaluate.boxes import box_probe, open_boxes
from flexpredict.evaluate.features import cached, size_for
from flexpredict.evaluate.results import Evaluation
from flexpredict.evaluate.shifts import DISTANCES, shift_probe
from flexpredict.evaluate.subject import Subject
from flexpredict.evaluate.tasks import VIDEO_TASKS, Labelled, open_task
from flexpredict.evaluate.tuned import evaluate_finetune
from flexpredict.evaluate.video import Following, evaluate_videos
from flexpredict.files import check_empty
from flexpredict.model.pixels import PixelMeans
from flexpredict.model.vit import Encoder, Resize, Size
from flexpredict.notice import Notice
from flexpredict.progress import Tally
from flexpredict.run_folder import CONFIG, EVALUATIONS
from flexpredict.train.loop import Interrupted


class Features(NamedTuple):
    features: NDArray[np.float32]  # (images, D · layers)
    names: list[str]
    labels: NDArray[np.int64] | None
    classes: list[str]
    left_out: dict[str, str]  # images that cannot be used, and why


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
    """Frozen features of all images that can be used: token means after the final norm."""
    check_values({"layers": layers, "resize": resize})
    model = _encoder(run, encoder, device)
    rendered = max(size_for(model, image_size))  # of scenes, which are square
    source = open_source(data, image_size=rendered, progress=Tally("scenes"))
    unusable: dict[int, str] = {}
    found = cached(
        model,
        source,
        layers=layers,
        image_size=image_size,
        resize=resize,
        unusable=unusable,
        progress=Tally("features"),
    )
    if not unusable:
        names = [source.name(row) for row in range(len(source))]
        return Features(found.numpy(), names, source.labels, source.classes, {})
    first = next(iter(unusable))
    said = f"{source.name(first)}: {unusable[first]}"
    if len(unusable) == len(source):
        raise ValueError(f"none of {len(source)} images can be used: {said}")
    warnings.warn(
        f"{len(unusable)} of {len(source)} images cannot be used and are left out; the first is "
        f"{said} (`flexpredict data inspect` names all such)",
        Notice,
        stacklevel=2,
    )
    rows = [row for row in range(len(source)) if row not in unusable]
    return Features(
        found.numpy()[rows],
        [source.name(row) for row in rows],
        None if source.labels is None else source.labels[rows],
        source.classes,
        {source.name(row): why for row, why in unusable.items()},
    )


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
    augment, epochs: other than the protocol's. on: task, data, train, test, encoder, image_size,
    resize and device, as `On` has them.
    """
    check_values({"layers": layers, "draws": draws, "epochs": epochs})
    subject, task = _open(probe, run, labels, **on)
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
    """L2 logistic regression to convergence.

    protocol: default, released-1% or released-1%-script. on: as for `probe`.
    """
    check_values({"layers": layers, "draws": draws})
    subject, task = _open(logistic, run, labels, **on)
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
    """Weighted nearest neighbours, and a ridge probe in closed form. on: as for `probe`."""
    check_values(
        {"neighbours": neighbours, "temperature": temperature, "layers": layers, "draws": draws}
    )
    subject, task = _open(knn, run, labels, **on)
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
    """What features of an image are like when it moves by some pixels, and what that costs.

    on: as for `probe`.
    """
    check_values({"distances": distances})
    subject, task = _open(shifts, run, labels, **on)
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
    """Fine-tunes end to end by a preset, over which `settings` are laid.

    What was interrupted is gone on with by the same call. on: as for `probe`.
    """
    check_values({"draws": draws})
    if on.get("encoder") == "pixels":
        raise ValueError("pixels have no weights to fine-tune: choose another encoder")
    subject, task = _open(finetune, run, labels, **on)
    kept = Interrupted("stopped; the same command goes on from the last epoch that was kept")
    with raised_by_sigterm(kept):
        return evaluate_finetune(
            subject,
            task,
            preset=preset,
            settings=settings,
            labels=labels,
            draws=draws,
            seed=seed,
            unfinished=folder_of(run) / EVALUATIONS / "unfinished",
            finished=partial(_keep, run),
        )


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
    check_values({"layers": layers, "resize": resize})
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
    check_values({"size": size, "resize": resize})
    if out is not None:
        check_empty(Path(out))
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
        return Path(out) if out else folder_of(run) / EVALUATIONS / f"{found.name}-masks"

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


def _open(
    method: Callable[..., Evaluation],
    run: str | Path,
    labels: str | float | None,
    **on: Unpack[On],
) -> tuple[Subject, Labelled]:
    """An encoder and what it is evaluated on."""
    check_options(method, on)
    check_values(on)
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
    try:
        results.write(folder_of(run), found)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        warnings.warn(  # somebody else's run: the number is there all the same
            Notice(f"the result cannot be kept in {folder_of(run)}: {error.strerror}"), stacklevel=2
        )
    return found


def _encoder(run: str | Path, encoder: Encoders, device: str | None) -> Encoder:
    """A run's encoder on the device that evaluations use."""
    if encoder == "pixels":
        like = load(run)
        statistics = like.architecture["mean"], like.architecture["std"]
        return PixelMeans(like.grid, like.patch_size, *statistics).to(pick_device(device))
    if encoder == "untrained":
        config = folder_of(run) / CONFIG
        if not config.is_file():
            raise ValueError(f"{run} has no {CONFIG}: its untrained encoder cannot be made again")
        return build.build_encoder(read_settings(config)).eval().to(pick_device(device))
    return load(run, encoder).to(pick_device(device))
