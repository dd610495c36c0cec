"""What happens to features when an image moves a little: how much they change, what it costs.

A ridge probe is fitted to images as they are, and tested on images that were moved up, down, left
and right; what comes in at the border is the image mirrored.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from flexpredict.data.transforms import read_images
from flexpredict.engine.encoders import encoder_digest
from flexpredict.engine.precision import autocast_frozen
from flexpredict.evaluate.features import size_for
from flexpredict.evaluate.results import Evaluation, options
from flexpredict.evaluate.ridge import ridge_classifier
from flexpredict.evaluate.subject import Draws, Subject, TrainFeatures
from flexpredict.evaluate.tasks import Labelled

DISTANCES = (1, 2, 4, 8, 16)  # pixels
_WAYS = ((0, 1), (0, -1), (1, 0), (-1, 0))
_AT_ONCE = 256


def moved(images: Tensor, down: int, right: int) -> Tensor:
    """Images (B, c, H, W), moved by so many pixels, mirrored at the border they come away from."""
    reach = max(abs(down), abs(right))
    if reach == 0:
        return images
    height, width = images.shape[-2:]
    wide = F.pad(images.float(), (reach,) * 4, mode="reflect").to(images.dtype)
    return wide[..., reach - down : reach - down + height, reach - right : reach - right + width]


@torch.inference_mode()
def shift_probe(
    subject: Subject,
    task: Labelled,
    *,
    distances: Sequence[int] = DISTANCES,
    labels: str | float | None = None,
    seed: int = 0,
) -> Evaluation:
    """Accuracy, and likeness of features to those of the image at rest, by distance.

    Likeness is the mean cosine, with the mean of the training features taken off: 1 where nothing
    changes, about 0 where the features might as well be another image's.
    """
    size = size_for(subject.encoder, subject.image_size)
    distances = list(dict.fromkeys(distances))
    if (far := max(distances)) >= min(size):
        raise ValueError(
            f"images of {size[0]}x{size[1]} cannot be moved by {far} pixels: ask for less with "
            f"--distances"
        )
    drawn = Draws.of(task, labels, seed, 1)
    x, y = TrainFeatures(subject, task, drawn, 1).of(drawn.rows[0])
    fit, penalty = ridge_classifier(x, y, seed=seed)
    middle, truth = x.mean(0), task.test_labels.to(subject.device)
    right = dict.fromkeys((0, *distances), 0.0)
    alike = dict.fromkeys(distances, 0.0)
    progress = subject.progress("moved images")
    for start in range(0, len(task.test), _AT_ONCE):
        rows = range(start, min(start + _AT_ONCE, len(task.test)))
        images = read_images(task.test, rows, size, task.task.test, subject.encoder.in_channels)
        images, wanted = images.to(subject.device), truth[rows.start : rows.stop]

        def features(some: Tensor) -> Tensor:
            with autocast_frozen(subject.device):
                return subject.encoder.features(some, resize=subject.resize).float()

        still = features(images)
        right[0] += float((fit(still).argmax(1) == wanted).sum())
        for distance in distances:
            for down, across in _WAYS:
                found = features(moved(images, down * distance, across * distance))
                hits = (fit(found).argmax(1) == wanted).sum()
                right[distance] += float(hits) / len(_WAYS)
                cosines = F.cosine_similarity(found - middle, still - middle)
                alike[distance] += float(cosines.sum()) / len(_WAYS)
        if progress is not None:
            progress(rows.stop, len(task.test))
    count = len(task.test)
    return Evaluation(
        task=task.name,
        data=task.data,
        method="shifts",
        protocol="ridge",
        result={"accuracy": 100 * right[0] / count}
        | {f"accuracy_{distance}": 100 * right[distance] / count for distance in distances}
        | {f"likeness_{distance}": alike[distance] / count for distance in distances},
        encoder=subject.which,
        layers=1,
        checkpoint=encoder_digest(subject.encoder),
        labels=drawn.budget.text,
        seeds=drawn.seeds,
        variant=subject.variant
        | drawn.variant
        | options(distances=list(distances) if tuple(distances) != DISTANCES else None),
        note="means over moves up, down, left and right; the penalty was chosen on held-out "
        "training images at rest",
        details={"penalty": penalty, "train_images": len(x), "test_images": count},
    )
