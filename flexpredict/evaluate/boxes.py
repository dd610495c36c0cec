"""A box probe: ridge regression from frozen features to the box of the labelled object.

Boxes are x0, y0, x1, y1 as shares of the image's width and height. Images are squashed to the
encoder's size, so that all of a box is always seen. A box without width or height is no box.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flexpredict.data.decode import plain_jpeg_size
from flexpredict.data.sources import PackedSource, open_source
from flexpredict.data.sources.named import NAMES
from flexpredict.data.transforms import Transform, read_pixels
from flexpredict.engine.encoders import encoder_digest
from flexpredict.evaluate.features import cached, size_for
from flexpredict.evaluate.results import Evaluation, options
from flexpredict.evaluate.ridge import Fit, choose_fit
from flexpredict.evaluate.subject import Subject

_PLAIN, _SQUASHED = Transform(), Transform("squash")
_EXPECTED = "expected tiny-imagenet, or packed .npz files that all have an array bbox"


@dataclass(frozen=True, slots=True)
class BoxTask:
    """Training and test images with a box each."""

    name: str
    train: PackedSource
    test: PackedSource
    data: str = ""  # where the images are, if they have no name


def open_boxes(data: str | Path) -> BoxTask:
    """A packed file, several, or a name of one: with the splits train and val, and with boxes."""
    named = str(data) in NAMES
    if not named and not str(data).endswith(".npz"):
        wrong = "has no boxes" if Path(data).expanduser().exists() else "is not there"
        raise ValueError(f"{data} {wrong}: {_EXPECTED}")
    train, test = (_with_boxes(data, split) for split in ("train", "val"))
    if named:
        return BoxTask(str(data), train, test)
    where = Path(data).expanduser().resolve()
    return BoxTask(where.name.removesuffix(".npz"), train, test, str(where))


def _with_boxes(data: str | Path, split: str) -> PackedSource:
    source = open_source(f"{data}:{split}")
    if not isinstance(source, PackedSource) or source.boxes is None:
        raise ValueError(f"{data} has no boxes: {_EXPECTED}")
    return source


def iou(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes, row by row: (n, 4) and (n, 4) -> (n,)

    A box whose right or lower side comes first is empty; two empty boxes have nothing in common.
    """
    inner = torch.cat(
        [torch.maximum(one[:, :2], other[:, :2]), torch.minimum(one[:, 2:], other[:, 2:])], dim=1
    )
    common = _area(inner)
    union = _area(one) + _area(other) - common
    return torch.where(union > 0, common / union, 0.0)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)


@torch.inference_mode()
def box_probe(subject: Subject, task: BoxTask, *, layers: int = 1, seed: int = 0) -> Evaluation:
    """Mean IoU on the test images, beside that of the mean box of the training images."""
    (x, y), (test, truth) = (
        _features_and_boxes(subject, source, name, layers)
        for source, name in ((task.train, "train"), (task.test, "test"))
    )

    def held_out_iou(fit: Fit, rows: Tensor) -> float:
        return float(iou(fit(x[rows]), y[rows]).mean())

    fit, penalty = choose_fit(x, lambda rows: y[rows], held_out_iou, seed=seed)
    usual = y.mean(0).expand_as(truth)
    return Evaluation(
        task=task.name,
        data=task.data,
        method="boxes",
        protocol="ridge",
        result=_scores(fit(test), truth)
        | {f"mean_box_{key}": value for key, value in _scores(usual, truth).items()},
        encoder=subject.which,
        layers=layers,
        checkpoint=encoder_digest(subject.encoder),
        seeds=[seed],
        variant=subject.variant | options(layers=layers if layers > 1 else None, seed=seed or None),
        note="the penalty was chosen on held-out training images; boxes without width or height "
        "are left out",
        details={
            "penalty": penalty,
            "mean_box": y.mean(0).tolist(),
            "train_images": len(x),
            "test_images": len(test),
            "left_out": len(task.train) - len(x) + len(task.test) - len(test),
        },
    )


def _scores(boxes: Tensor, truth: Tensor) -> dict[str, float]:
    """In percent."""
    found = iou(boxes, truth)
    return {
        "iou": 100 * float(found.mean()),
        "iou_over_50": 100 * float((found >= 0.5).double().mean()),
    }


def _features_and_boxes(
    subject: Subject, source: PackedSource, name: str, layers: int
) -> tuple[Tensor, Tensor]:
    """Of the images whose boxes have width and height."""
    assert source.boxes is not None
    boxes = torch.from_numpy(source.boxes).double()
    rows = torch.nonzero(_area(boxes))[:, 0]
    if not len(rows):
        raise ValueError(f"none of the {name} images has a box with width and height")
    channels = subject.encoder.in_channels
    sizes = np.array([_size(source, row, channels) for row in range(len(source))])
    height, width = sizes.T
    tall, wide = size_for(subject.encoder, subject.image_size)
    in_shape = bool((height * wide == width * tall).all())  # as probes see them: features are there
    features = cached(
        subject.encoder,
        source,
        layers=layers,
        image_size=subject.image_size,
        transform=_PLAIN if in_shape else _SQUASHED,
        resize=subject.resize,
        progress=subject.progress(f"{name} features"),
    )
    shares = boxes / torch.from_numpy(np.stack([width, height, width, height], axis=1))
    return features[rows].to(subject.device), shares[rows].to(subject.device)


def _size(source: PackedSource, row: int, channels: int) -> tuple[int, int]:
    """Height and width."""
    return plain_jpeg_size(source.read(row)) or read_pixels(source, row, channels).shape[:2]
