"""Commands that evaluate: features, probe, logistic, knn, finetune, boxes, shifts, video."""

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

import flexpredict
from flexpredict import config
from flexpredict.cli.printing import print_accuracy, print_boxes, print_shifts, print_video
from flexpredict.cli.shared import Device, Json, app, check_new_file, print_json
from flexpredict.evaluate.results import Evaluation
from flexpredict.files import whole

Run = Annotated[Path, typer.Argument(help="A run folder.")]
Task = Annotated[
    str | None, typer.Option(help="A named task: cifar100, imagenet-1%, scenes-count, …")
]
Data = Annotated[
    str | None, typer.Option(help="The task's data, or any labelled folder or packed .npz file.")
]
Train = Annotated[str | None, typer.Option(help="Labelled images to train on, with --test.")]
Test = Annotated[str | None, typer.Option(help="Labelled images to test on, with --train.")]
Labels = Annotated[
    str | None, typer.Option(help="all, a share (1%), a number (13/class), or a list of names.")
]
Draws = Annotated[int, typer.Option(min=1, help="Draws of the label budget: mean and deviation.")]
Seed = Annotated[int, typer.Option(help="Another seed, another draw.")]
Which = Annotated[
    Literal["target", "context", "untrained", "pixels"],
    typer.Option(
        help="Which of the run's encoders; untrained: as its seed draws it; pixels: none, but "
        "the mean colours of its patches."
    ),
]
ImageSize = Annotated[int | None, typer.Option(help="Other than the encoder's own.")]
Resize = Annotated[
    Literal["recompute", "interpolate"], typer.Option(help="Positions at another size.")
]
Layers = Annotated[int, typer.Option(min=1, help="How many last layers, side by side.")]


def evaluates(
    show: Callable[[Evaluation], None],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command of a signature alone: the package's function of that name gets all options."""

    def command(signature: Callable[..., None]) -> Callable[..., None]:
        @app.command()
        @wraps(signature)
        def run(*, as_json: bool, **given: Any) -> None:
            _show(getattr(flexpredict, signature.__name__)(**given), show, as_json)

        return run

    return command


def _show(found: Evaluation, show: Callable[[Evaluation], None], as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
    else:
        show(found)


def _pixels(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--distances takes pixels as 1,2,4, not {text!r}")
    return [int(part) for part in parts]


@app.command()
def features(
    run: Run,
    data: Annotated[str, typer.Option(help="A folder of images, or `scenes`.")],
    out: Annotated[Path, typer.Option(help="The .npz file to write.")],
    encoder: Which = "target",
    layers: Layers = 1,
    image_size: ImageSize = None,
    resize: Resize = "recompute",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write the frozen features of a folder of images, without those that cannot be used.

    Example: `flexpredict features run/ --data photos/ --out features.npz`
    """
    check_new_file("--out", out, ".npz", "features are")
    found = flexpredict.features(
        run,
        data,
        encoder=encoder,
        layers=layers,
        image_size=image_size,
        resize=resize,
        device=device,
    )
    arrays = {"features": found.features, "names": np.array(found.names)}
    if found.labels is not None:
        arrays |= {"labels": found.labels, "classes": np.array(found.classes)}
    with whole(out) as file:
        np.savez(file, allow_pickle=False, **arrays)
    count, width = found.features.shape
    if as_json:
        said = {"out": str(out), "images": count, "width": width, "encoder": encoder}
        print_json(said | {"left_out": found.left_out})
    else:
        without = f", {len(found.left_out)} left out" if found.left_out else ""
        print(f"{out}: {count} images x {width} features of the {encoder} encoder{without}")


@evaluates(print_accuracy)
def probe(
    run: Run,
    task: Task = None,
    data: Data = None,
    train: Train = None,
    test: Test = None,
    protocol: Annotated[
        str, typer.Option(help="default, vissl-sgd, vissl-lars or ijepa.")
    ] = "default",
    labels: Labels = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Only heads on this many last layers.")
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment", help="Random crops in training; as the protocol has it."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Other than the protocol's, drops in proportion.")
    ] = None,
    draws: Draws = 1,
    seed: Seed = 0,
    encoder: Which = "target",
    image_size: ImageSize = None,
    resize: Resize = "recompute",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train linear probes on frozen features: a grid of heads in one pass.

    Example: `flexpredict probe run/ --task cifar100 --data cifar-100-python/`
    """


@evaluates(print_accuracy)
def logistic(
    run: Run,
    task: Task = None,
    data: Data = None,
    train: Train = None,
    test: Test = None,
    protocol: Annotated[
        str, typer.Option(help="default, released-1% or released-1%-script.")
    ] = "default",
    labels: Labels = None,
    layers: Layers = 1,
    draws: Draws = 1,
    seed: Seed = 0,
    encoder: Which = "target",
    image_size: ImageSize = None,
    resize: Resize = "recompute",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Fit L2 logistic regression to convergence on frozen features.

    Example: `flexpredict logistic run/ --task imagenet-1% --data imagenet/ --protocol released-1%`
    """


@evaluates(print_accuracy)
def knn(
    run: Run,
    task: Task = None,
    data: Data = None,
    train: Train = None,
    test: Test = None,
    labels: Labels = None,
    neighbours: Annotated[int, typer.Option(min=1, help="How many vote.")] = 20,
    temperature: Annotated[float, typer.Option(min=0.001, help="Of their votes.")] = 0.07,
    layers: Layers = 1,
    draws: Draws = 1,
    seed: Seed = 0,
    encoder: Which = "target",
    image_size: ImageSize = None,
    resize: Resize = "recompute",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Weighted nearest neighbours and a closed-form ridge probe: no training, seconds.

    Example: `flexpredict knn run/ --data labelled/`
    """


@app.command()
def finetune(
    run: Run,
    task: Task = None,
    data: Data = None,
    train: Train = None,
    test: Test = None,
    preset: Annotated[
        str, typer.Option(help="small, ijepa-1%-l16, ijepa-1%-h14, mae-b16, mae-l16, …")
    ] = "small",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Over the preset's.")
    ] = None,
    labels: Labels = None,
    draws: Draws = 1,
    seed: Seed = 0,
    encoder: Which = "target",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Fine-tune end to end on labelled images.

    Example: `flexpredict finetune run/ --task imagenet-1% --data imagenet/ --preset ijepa-1%-l16`
    """
    found = flexpredict.finetune(
        run,
        task=task,
        data=data,
        train=train,
        test=test,
        preset=preset,
        settings=config.parse_pairs(set_ or []),
        labels=labels,
        draws=draws,
        seed=seed,
        encoder=encoder,
        device=device,
    )
    _show(found, print_accuracy, as_json)


@evaluates(print_boxes)
def boxes(
    run: Run,
    data: Annotated[
        str, typer.Option(help="A packed .npz file with splits and bbox, several, or a name.")
    ],
    layers: Layers = 1,
    seed: Seed = 0,
    encoder: Which = "target",
    image_size: ImageSize = None,
    resize: Resize = "recompute",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find the box of the labelled object by ridge regression on frozen features: mean IoU.

    Example: `flexpredict boxes run/ --data tiny-imagenet`
    """


@evaluates(print_shifts)
def shifts(
    run: Run,
    task: Task = None,
    data: Data = None,
    train: Train = None,
    test: Test = None,
    distances: Annotated[
        str, typer.Option(help="Pixels by which images move.", callback=_pixels)
    ] = "1,2,4,8,16",
    labels: Labels = None,
    seed: Seed = 0,
    encoder: Which = "target",
    image_size: ImageSize = None,
    resize: Resize = "recompute",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Move images by some pixels: how much features change, and what it costs a ridge probe.

    Example: `flexpredict shifts run/ --data tiny-imagenet --distances 1,4,16`
    """


@app.command()
def video(
    run: Run,
    task: Annotated[
        Literal["davis2017", "davis2016", "scenes-video"],
        typer.Option(help="davis2016: one object; scenes-video: embedded, needs no data."),
    ] = "davis2017",
    data: Annotated[Path | None, typer.Option(help="The DAVIS folder.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where masks and overlays go; by default in the run.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=16, help="Shorter side of the frames: 480, scenes: their own.")
    ] = None,
    positions: Annotated[
        Literal["interpolate", "recompute"], typer.Option(help="Positions at the video's size.")
    ] = "interpolate",
    only: Annotated[list[str] | None, typer.Option(help="Only these videos.")] = None,
    encoder: Which = "target",
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Follow objects through videos by their features (DAVIS, semi-supervised): J and F.

    Example: `flexpredict video run/ --task davis2017 --data DAVIS/`
    """
    found, folder = flexpredict.video(
        run,
        task=task,
        data=data,
        out=out,
        size=size,
        resize=positions,
        only=only,
        encoder=encoder,
        device=device,
    )
    if as_json:
        print_json(asdict(found) | {"masks": str(folder)})
        return
    print_video(found)
    print(f"Masks and overlays: {folder}")
