"""Exact values of the official DAVIS-2017 measures on small hand-made masks."""

from fractions import Fraction

import numpy as np
import pytest

from flexpredict.evaluate.metrics import (
    boundary,
    boundary_accuracy,
    dilate,
    region_similarity,
    sequence_measures,
    statistics,
)

Box = tuple[int, int, int, int]  # first and last row, first and last column, ends included
S: Box = (5, 14, 5, 14)
B: Box = (100, 199, 200, 299)


def _mask(shape: tuple[int, int], *boxes: Box) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    for top, bottom, left, right in boxes:
        mask[top : bottom + 1, left : right + 1] = True
    return mask


def _moved(box: Box, down: int, right: int) -> Box:
    return box[0] + down, box[1] + down, box[2] + right, box[3] + right


@pytest.mark.parametrize(("radius", "pixels"), [(1, 5), (2, 13), (6, 113), (8, 197)])
def test_dilate__is_a_disk(radius: int, pixels: int) -> None:
    assert dilate(_mask((41, 41), (20, 20, 20, 20)), radius).sum() == pixels
    corner = dilate(_mask((41, 41), (0, 0, 0, 0)), radius)
    expected = sum(y * y + x * x <= radius**2 for y in range(41) for x in range(41))
    assert corner.sum() == expected


@pytest.mark.parametrize(
    ("box", "pixels"),
    [
        ((10, 10, 10, 10), {(9, 9), (9, 10), (10, 9), (10, 10)}),
        ((0, 0, 0, 0), {(0, 0)}),
        ((0, 0, 19, 19), {(0, 18), (0, 19)}),
        ((19, 19, 0, 0), {(18, 0), (19, 0)}),
        ((19, 19, 19, 19), {(18, 18), (18, 19), (19, 18)}),
        ((19, 19, 10, 10), {(18, 9), (18, 10), (19, 9), (19, 10)}),
        ((10, 10, 19, 19), {(9, 18), (9, 19), (10, 18), (10, 19)}),
        ((0, 4, 0, 4), {(r, 4) for r in range(5)} | {(4, c) for c in range(5)}),
        ((15, 19, 15, 19), {(14, c) for c in range(14, 20)} | {(r, 14) for r in range(14, 20)}),
        ((10, 19, 0, 19), {(9, c) for c in range(20)}),
        ((0, 9, 0, 19), {(9, c) for c in range(20)}),
        ((0, 19, 0, 19), set()),
    ],
)
def test_boundary__pixels(box: Box, pixels: set[tuple[int, int]]) -> None:
    found = {(int(r), int(c)) for r, c in np.argwhere(boundary(_mask((20, 20), box)))}
    assert found == pixels


def test_boundary__of_a_square_is_a_ring() -> None:
    edge = boundary(_mask((20, 20), S))
    ring = _mask((20, 20), (4, 14, 4, 14)) & ~_mask((20, 20), (5, 13, 5, 13))
    assert np.array_equal(edge, ring)


WHOLE: Box = (0, 19, 0, 19)
CASES: list[tuple[tuple[int, int], list[Box], list[Box], str, str]] = [
    ((20, 20), [], [], "1", "1"),
    ((20, 20), [S], [], "0", "0"),
    ((20, 20), [], [S], "0", "0"),
    ((20, 20), [WHOLE], [], "0", "1"),
    ((20, 20), [WHOLE], [S], "1/4", "0"),
    ((20, 20), [(10, 10, 10, 10)], [(10, 10, 11, 11)], "0", "1"),
    ((20, 20), [(10, 10, 10, 10)], [(10, 10, 12, 12)], "0", "1/2"),
    ((20, 20), [(10, 10, 10, 10)], [(11, 11, 11, 11)], "0", "3/4"),
    ((20, 20), [S], [_moved(S, 0, 1)], "9/11", "1"),
    ((20, 20), [S], [_moved(S, 0, 2)], "2/3", "11/20"),
    ((20, 20), [S], [_moved(S, 2, 2)], "8/17", "3/20"),
    ((20, 20), [S], [(6, 13, 6, 13)], "16/25", "18/19"),
    ((20, 20), [(2, 9, 2, 9)], [(2, 9, 2, 9), (15, 17, 15, 17)], "64/73", "16/19"),
    ((20, 20), [(15, 19, 15, 19)], [(16, 19, 16, 19)], "16/25", "20/21"),
    ((20, 20), [(10, 19, 0, 19)], [(12, 19, 0, 19)], "4/5", "0"),
    ((480, 854), [B], [_moved(B, 0, 8)], "23/27", "1"),
    ((480, 854), [B], [_moved(B, 0, 9)], "91/109", "27/50"),
    ((480, 854), [B], [_moved(B, 8, 8)], "529/721", "77/80"),
    ((480, 854), [B], [(92, 207, 192, 307)], "625/841", "202/217"),
    ((480, 854), [B], [(91, 208, 191, 308)], "2500/3481", "0"),
    ((480, 480), [B], [_moved(B, 0, 6)], "47/53", "1"),
    ((480, 480), [B], [_moved(B, 0, 7)], "93/107", "53/100"),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_one_frame__published_cases(number: int) -> None:
    shape, truth, prediction, region, contour = CASES[number]
    masks = _mask(shape, *truth), _mask(shape, *prediction)
    assert region_similarity(*masks) == pytest.approx(float(Fraction(region)), abs=1e-12)
    assert boundary_accuracy(*masks) == pytest.approx(float(Fraction(contour)), abs=1e-12)


@pytest.mark.parametrize(("tolerance", "value"), [(2, 1.0), (1, 0.55)])
def test_boundary_accuracy__tolerance_in_pixels(tolerance: float, value: float) -> None:
    masks = _mask((20, 20), S), _mask((20, 20), _moved(S, 0, 2))
    assert boundary_accuracy(*masks, tolerance) == pytest.approx(value)


@pytest.mark.parametrize(
    ("frames", "first", "last"),
    [(1, (0, 0), (0, 0)), (2, (0, 0), (1, 1)), (3, (0, 1), (2, 2)), (4, (0, 1), (2, 3)),
     (5, (0, 1), (3, 4)), (8, (0, 2), (5, 7)), (10, (0, 2), (7, 9)), (12, (0, 3), (8, 11)),
     (50, (0, 12), (37, 49)), (67, (0, 17), (50, 66)), (102, (0, 25), (76, 101))],
)  # fmt: skip
def test_statistics__bins_of_the_decay(
    frames: int, first: tuple[int, int], last: tuple[int, int]
) -> None:
    values = np.random.default_rng(frames).random(frames)
    early = values[first[0] : first[1] + 1].mean()
    late = values[last[0] : last[1] + 1].mean()
    assert statistics(list(values)).decay == pytest.approx(early - late, abs=1e-12)


def test_statistics__published_values() -> None:
    falling = statistics([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    assert (falling.mean, falling.recall, falling.decay) == pytest.approx((0.55, 0.5, 0.5))
    longer = statistics([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert (longer.mean, longer.recall, longer.decay) == pytest.approx((0.55, 0.5, 0.7))
    assert statistics([0.5, 0.5, 0.6, 0.4]).recall == 0.25


def _indexed(labels: dict[int, Box]) -> np.ndarray:
    frame = np.zeros((40, 60), dtype=np.uint8)
    for label, box in labels.items():
        frame[_mask((40, 60), box)] = label
    return frame


def test_sequences__end_to_end() -> None:
    one, two = (5, 14, 5, 14), (20, 29, 30, 39)
    truth_a = [_indexed({1: one, 2: two})] * 6
    empty = _indexed({})
    moved = [_indexed({1: _moved(one, 0, frame - 1)}) for frame in range(1, 5)]
    a = sequence_measures(truth_a, [empty, *moved, empty])

    three: Box = (10, 19, 10, 19)
    plain, void = _indexed({1: three}), _indexed({1: three, 255: (0, 4, 0, 4)})
    wrong = plain | _indexed({1: (0, 4, 0, 4)})
    b = sequence_measures([plain, plain, void, plain, plain], [empty, plain, wrong, empty, empty])

    rows = []
    for regions, contours in (*a, *b):
        region, contour = statistics(regions), statistics(contours)
        rows.append([region.mean, region.recall, region.decay,
                     contour.mean, contour.recall, contour.decay])  # fmt: skip
    published = [
        [0.755828, 1, 0.306527, 0.7625, 0.75, 0.475],
        [0, 0, 0, 0, 0, 0],
        [0.6, 0.666667, 0.9, 0.632959, 0.666667, 0.949438],
    ]
    np.testing.assert_allclose(rows, published, atol=6e-7)
    j, f = np.mean(rows, axis=0)[[0, 3]]
    assert (j, f, (j + f) / 2) == pytest.approx((0.4519425, 0.4651529, 0.4585477), abs=6e-8)


def test_sequences__label_beyond_the_objects_is_refused() -> None:
    truth = [_indexed({1: (5, 14, 5, 14)})] * 3
    with pytest.raises(ValueError, match="has label 2, but the sequence has 1 objects"):
        sequence_measures(truth, [_indexed({2: (5, 14, 5, 14)})] * 3)
