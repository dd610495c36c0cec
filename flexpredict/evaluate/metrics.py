"""DAVIS's measures of a segmentation: region similarity J and boundary accuracy F.

Masks are boolean maps (height, width). The definitions follow the official DAVIS-2017 evaluation,
semi-supervised task; tests/evaluate/test_metrics.py holds them to its values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.davis import VOID

Mask = NDArray[np.bool_]
_TOLERANCE = 0.008  # of the image diagonal


@dataclass(frozen=True, slots=True)
class Statistics:
    """One measure of one object over its frames."""

    mean: float
    recall: float  # share of frames above 0.5
    decay: float  # mean of the first quarter minus mean of the last


def region_similarity(truth: Mask, prediction: Mask) -> float:
    """J: intersection over union; 1 where both are empty."""
    union = np.count_nonzero(truth | prediction)
    return np.count_nonzero(truth & prediction) / union if union else 1.0


def boundary_accuracy(truth: Mask, prediction: Mask, tolerance: float = _TOLERANCE) -> float:
    """F: harmonic mean of the matched shares of both boundaries.

    tolerance: in pixels if it is 1 or more, else a share of the image diagonal.
    """
    radius = math.ceil(tolerance if tolerance >= 1 else tolerance * math.hypot(*truth.shape))
    true_edge, edge = boundary(truth), boundary(prediction)
    true_count, count = np.count_nonzero(true_edge), np.count_nonzero(edge)
    # It is the boundary that is tested for emptiness, not the mask.
    if not (true_count and count):
        return float(true_count == count)
    precision = np.count_nonzero(edge & dilate(true_edge, radius)) / count
    recall = np.count_nonzero(true_edge & dilate(edge, radius)) / true_count
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0


def boundary(mask: Mask) -> Mask:
    """Pixels that differ from their right, lower or lower-right neighbour."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    right, lower, corner = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    edge = (mask != right) | (mask != lower) | (mask != corner)
    edge[-1] = mask[-1] != right[-1]
    edge[:, -1] = mask[:, -1] != lower[:, -1]
    edge[-1, -1] = False
    return edge


def dilate(mask: Mask, radius: int) -> Mask:
    """Every pixel within a disk of a set one; outside the frame nothing is set."""
    height, width = mask.shape
    counts = np.pad(np.cumsum(mask, axis=1, dtype=np.int32), ((0, 0), (1, 0)))
    columns, grown = np.arange(width), np.zeros_like(mask)
    for dy in range(-radius, radius + 1):
        reach = math.isqrt(radius**2 - dy**2)
        left = np.maximum(columns - reach, 0)
        right = np.minimum(columns + reach + 1, width)
        rows = slice(max(0, -dy), min(height, height - dy))
        shifted = slice(max(0, dy), min(height, height + dy))
        grown[shifted] |= counts[rows][:, right] > counts[rows][:, left]
    return grown


def statistics(values: Sequence[float]) -> Statistics:
    """Mean, recall and decay of per-frame values."""
    array = np.asarray(values, dtype=np.float64)
    # Five points from 1 to n, halves rounded up; both ends of a bin belong to it.
    edges = np.floor(np.linspace(1, len(array), 5) + 1e-10 + 0.5).astype(int) - 1
    first, last = array[edges[0] : edges[1] + 1], array[edges[3] : edges[4] + 1]
    return Statistics(
        mean=float(array.mean()),
        recall=float((array > 0.5).mean()),
        decay=float(first.mean() - last.mean()),
    )


def sequence_measures(
    truth: Sequence[NDArray[Any]], predictions: Sequence[NDArray[Any]]
) -> list[tuple[list[float], list[float]]]:
    """J and F per frame of every object: indexed masks of a whole sequence, first frame included.

    The first and last frames are left out; void becomes background; objects are counted by the
    largest label of the first true frame, and one that is missing from a prediction is empty.
    """
    true_frames = [np.where(frame == VOID, 0, frame) for frame in truth]
    objects = int(true_frames[0].max())
    for number, frame in enumerate(predictions):
        if (most := int(np.where(frame == VOID, 0, frame).max(initial=0))) > objects:
            raise ValueError(
                f"frame {number} of the prediction has label {most}, but the sequence has "
                f"{objects} objects"
            )
    pairs = list(zip(true_frames, predictions, strict=True))[1:-1]
    return [
        (
            [region_similarity(t == label, p == label) for t, p in pairs],
            [boundary_accuracy(t == label, p == label) for t, p in pairs],
        )
        for label in range(1, objects + 1)
    ]
