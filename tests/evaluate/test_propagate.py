"""Label propagation against DINO's script, and against loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from flexpredict.evaluate.propagate import propagate, stretch, to_grid, to_pixels


@pytest.mark.parametrize("tile", [1, 3, 100])
def test_propagate__equals_the_released_script(
    tile: int, vectors: dict[str, dict[str, np.ndarray]]
) -> None:
    data = {key: torch.from_numpy(value) for key, value in vectors["propagation"].items()}
    frames = data["features"].transpose(1, 2).unflatten(2, (7, 9))
    first = F.one_hot(data["first_mask"]).permute(2, 0, 1).float()
    soft = list(propagate(frames, first, radius=3, neighbours=5, previous=2, tile=tile))
    torch.testing.assert_close(torch.stack(soft), data["soft_masks"], rtol=1e-5, atol=1e-5)
    large = F.interpolate(soft[-1][None], scale_factor=16, mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(
        stretch(large), data["last_upsampled_normalised"], rtol=1e-4, atol=1e-4
    )
    objects = to_pixels(soft[-1], 16, (112, 144))
    assert (objects == data["last_argmax"]).float().mean() > 0.999


def test_propagate__one_hot_features_carry_their_labels() -> None:
    """Two objects that move by one patch a frame: perfect features give a perfect track."""
    masks = []
    for frame in range(8):
        mask = torch.zeros(12, 16, dtype=torch.long)
        mask[2:5, frame : frame + 3] = 1
        mask[7:10, 12 - frame : 15 - frame] = 2
        masks.append(mask)
    features = [F.one_hot(mask, 3).permute(2, 0, 1).float() for mask in masks]
    for labels, mask in zip(propagate(features, features[0], radius=4), masks[1:], strict=True):
        assert torch.equal(labels.argmax(0), mask)


def test_propagate__nothing_comes_from_outside_the_window() -> None:
    """The only lookalike is beyond the window: the label does not travel."""
    first, second = torch.zeros(2, 2, 3, 20).unbind(0)
    first[0], second[0] = 1, 1
    first[:, 1, 2] = torch.tensor([0.0, 1.0])
    second[:, 1, 12] = torch.tensor([0.0, 1.0])
    labels = torch.zeros(2, 3, 20)
    labels[0] = 1
    labels[:, 1, 2] = torch.tensor([0.0, 1.0])
    near = next(propagate([first, second], labels, radius=10, neighbours=1))
    far = next(propagate([first, second], labels, radius=9, neighbours=1))
    assert near[1, 1, 12] == 1
    assert far[1, 1, 12] == 0


def test_grid__labels_down_and_up_again() -> None:
    mask = torch.zeros(32, 48, dtype=torch.long)
    mask[8:16, 16:32] = 1
    labels = to_grid(mask, (4, 6))
    assert labels.shape == (2, 4, 6)
    assert torch.equal(labels.sum(0), torch.ones(4, 6))
    assert (to_pixels(labels, 8, (32, 48)) == mask).float().mean() > 0.9


def test_to_grid__takes_the_middle_of_each_patch_as_pillow_does() -> None:
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 4, (48, 83), dtype=np.uint8)
    small = np.asarray(Image.fromarray(mask).resize((9, 5), Image.Resampling.NEAREST))
    ours = to_grid(torch.from_numpy(mask), (5, 9)).argmax(0)
    np.testing.assert_array_equal(ours.numpy(), small)
