import numpy as np
import pytest
import torch

from flexpredict.evaluate.mixing import (
    ERASING_DRAWS,
    erase,
    erasing_boxes,
    mix,
    paste,
    smooth_labels,
)


def _batch(count: int = 6, size: tuple[int, int] = (24, 32)) -> tuple[torch.Tensor, torch.Tensor]:
    """Image i is all i, and is of class i: what is left of it can be read off the pixels."""
    images = torch.arange(count).float().view(-1, 1, 1, 1).expand(-1, 3, *size).clone()
    return images, torch.eye(count)


def test_smooth_labels__spread_over_all_classes() -> None:
    shares = smooth_labels(torch.tensor([2, 0]), 4, 0.1)
    expected = torch.tensor([[0.025, 0.025, 0.925, 0.025], [0.925, 0.025, 0.025, 0.025]])
    torch.testing.assert_close(shares, expected)


def test_mix__nothing_asked_nothing_done() -> None:
    images, shares = _batch()
    mixed, labels = mix(images, shares, np.random.default_rng(0))
    assert mixed is images
    assert labels is shares


def test_mixup__labels_are_the_shares_of_the_pixels() -> None:
    images, shares = _batch()
    seen = []
    for seed in range(20):
        mixed, labels = mix(images, shares, np.random.default_rng(seed), mixup=0.8)
        # The brightness of a mixed image is the mean class number under its label.
        torch.testing.assert_close(mixed.mean((1, 2, 3)), labels @ torch.arange(6.0))
        assert float(mixed.std((1, 2, 3)).max()) < 1e-6  # mixed everywhere alike
        seen.append(float(labels[0, 0]))
    assert min(seen) < 0.3
    assert max(seen) > 0.7


def test_cutmix__labels_are_the_shares_of_the_pixels() -> None:
    images, shares = _batch()
    seen = []
    for seed in range(20):
        mixed, labels = mix(images, shares, np.random.default_rng(seed), cutmix=1.0)
        for image, label in zip(mixed, labels, strict=True):
            measured = torch.bincount(image[0].long().flatten(), minlength=6) / image[0].numel()
            torch.testing.assert_close(measured, label)
        seen.append(float(labels[0, 0]))
    assert min(seen) < 0.5
    assert max(seen) > 0.7


def test_mix__both_take_turns() -> None:
    images, shares = _batch()
    cut = []
    for seed in range(200):
        mixed, _ = mix(images, shares, np.random.default_rng(seed), mixup=0.8, cutmix=1.0)
        cut.append(torch.equal(mixed, mixed.round()))
    assert abs(sum(cut) / 200 - 0.5) < 5 * (0.25 / 200) ** 0.5


def test_mix__the_mean_share_is_a_half() -> None:
    images, shares = _batch(2, (1, 1))
    kept = [
        float(mix(images, shares, np.random.default_rng(seed), mixup=0.8)[1][0, 0])
        for seed in range(2000)
    ]
    variance = 1 / (4 * (2 * 0.8 + 1))  # of Beta(0.8, 0.8)
    assert abs(np.mean(kept) - 0.5) < 5 * (variance / 2000) ** 0.5
    assert np.var(kept) == pytest.approx(variance, rel=0.15)


@pytest.mark.parametrize(
    ("share", "centre", "expected"),
    [(0.75, (0.5, 0.5), 0.75), (0.75, (0.0, 0.0), 1 - 1 / 16), (0.0, (0.5, 0.5), 0.0)],
)
def test_paste__a_box_beyond_the_border_counts_as_what_is_seen(
    share: float, centre: tuple[float, float], expected: float
) -> None:
    images, others = torch.zeros(2, 3, 32, 48), torch.ones(2, 3, 32, 48)
    pasted, stays = paste(images, others, share, centre)
    assert stays == expected
    assert float(1 - pasted.mean()) == pytest.approx(expected)
    assert float(images.sum()) == 0  # the batch given is not written to


def test_erasing__the_share_of_images_and_the_area() -> None:
    draws = np.random.default_rng(0).random((4000, ERASING_DRAWS))
    boxes = erasing_boxes(draws, (40, 60), 0.25)
    top, bottom, left, right = boxes.T
    area = (bottom - top) * (right - left) / 2400
    erased = area > 0
    assert abs(erased.mean() - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5
    assert area[erased].min() > 0.015
    assert area[erased].max() < 0.35
    assert boxes.min() == 0
    assert bottom.max() == 40
    assert right.max() == 60
    assert not erasing_boxes(draws, (40, 60), 0.0).any()


def test_erase__noise_in_the_box_and_nowhere_else() -> None:
    images = torch.full((2, 3, 32, 40), 7.0)
    boxes = torch.tensor([[4, 20, 10, 34], [0, 0, 0, 0]])
    out = erase(images, boxes, torch.Generator().manual_seed(0))
    assert torch.equal(out[1], images[1])
    outside = out[0].clone()
    outside[:, 4:20, 10:34] = 7
    assert torch.equal(outside, images[0])
    noise = out[0, :, 4:20, 10:34]
    assert abs(float(noise.mean())) < 5 / noise.numel() ** 0.5
    assert abs(float(noise.std()) - 1) < 5 / (2 * noise.numel()) ** 0.5
    assert torch.equal(out, erase(images, boxes, torch.Generator().manual_seed(0)))
