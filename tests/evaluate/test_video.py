"""Label propagation on videos: with perfect features, with useless ones, and with an encoder's."""

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from miniatures import SAFELY

from flexpredict.data.sources.davis import Video, open_davis
from flexpredict.data.sources.scene_videos import scene_video_folder
from flexpredict.evaluate.metrics import region_similarity
from flexpredict.evaluate.propagate import Grid, to_grid, to_pixels
from flexpredict.evaluate.video import (
    Following,
    encoder_features,
    evaluate_videos,
    frame_size,
    measure,
    segment,
)
from flexpredict.model.vit import create_encoder

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "davis2016-480p-sample.tar"
FRAMES, PATCH = 10, 16


@pytest.fixture(scope="module")
def scene_videos() -> list[Video]:
    return open_davis(scene_video_folder(count=3, frames=FRAMES, size=256), "2017")


@pytest.fixture(scope="module")
def davis_sample(tmp_path_factory: pytest.TempPathFactory) -> list[Video]:
    if not SAMPLE.exists():
        pytest.skip("the DAVIS sample of ../shared/data is not here")
    root = tmp_path_factory.mktemp("davis")
    with tarfile.open(SAMPLE) as file:
        file.extractall(root, **SAFELY)
    return [
        replace(video, frames=video.frames[:FRAMES], masks=video.masks[:FRAMES])
        for video in open_davis(root, "2016")
    ]


def _regions(video: Video, masks: list[np.ndarray]) -> float:
    """J over objects and frames, first and last left out, in the plainest words."""
    objects = int(video.mask(0).max())
    return float(
        np.mean(
            [
                region_similarity(video.mask(frame) == label, masks[frame] == label)
                for label in range(1, objects + 1)
                for frame in range(1, len(masks) - 1)
            ]
        )
    )


def _chance(video: Video) -> float:
    """J of an independent mask that is as large as the true one: p / (2 − p)."""
    shares = [
        (video.mask(frame) == label).mean()
        for label in range(1, int(video.mask(0).max()) + 1)
        for frame in range(1, len(video.frames) - 1)
    ]
    return float(np.mean([share / (2 - share) for share in shares]))


def _check(video: Video, size: int | None) -> None:
    height, width = frame_size(video.frame(0), size)
    grid: Grid = (height // PATCH, width // PATCH)
    count, full = int(video.mask(0).max()) + 1, video.mask(0).shape
    generator = torch.Generator().manual_seed(0)

    def truth(frame: int) -> torch.Tensor:
        """One-hot of the true object of each patch, (classes, h, w)."""
        one_hot = torch.zeros(count, *grid)
        found = to_grid(torch.from_numpy(video.mask(frame)), grid)
        one_hot[: len(found)] = found
        return one_hot

    def shuffled(frame: int) -> torch.Tensor:
        """The same with a little noise, as equal features would be taken in their order."""
        patches = truth(frame).flatten(1)
        patches = patches + 0.1 * torch.randn(patches.shape, generator=generator)
        order = torch.randperm(patches.shape[1], generator=generator)
        return patches[:, order].unflatten(1, grid)

    down_and_up = [
        to_pixels(truth(frame), PATCH, (full[0], full[1])).numpy().astype(np.uint8)
        for frame in range(len(video.frames))
    ]
    best = _regions(video, down_and_up)
    how = Following(size=size)
    perfect = _regions(video, list(segment(video, truth, grid, PATCH, how)))
    assert perfect >= 0.97 * best
    assert best > 0.4
    useless = _regions(video, list(segment(video, shuffled, grid, PATCH, how)))
    # The window keeps labels near their place for a while, which is a little better than chance.
    assert useless < _chance(video) + 0.05


def test_segment__perfect_and_useless_features_on_scenes(scene_videos: list[Video]) -> None:
    for video in scene_videos:
        _check(video, None)


def test_segment__perfect_and_useless_features_on_davis(davis_sample: list[Video]) -> None:
    for video in davis_sample:
        _check(video, 480)


def test_frame_size__as_in_dino() -> None:
    assert frame_size(np.empty((480, 854, 3), np.uint8), 480) == (480, 832)
    assert frame_size(np.empty((854, 480, 3), np.uint8), 480) == (832, 480)
    assert frame_size(np.empty((480, 910, 3), np.uint8), 480) == (480, 896)
    assert frame_size(np.empty((480, 480, 3), np.uint8), 480) == (448, 480)
    assert frame_size(np.empty((256, 256, 3), np.uint8), None) == (256, 256)


@pytest.mark.parametrize("patch", [16, 14])
def test_encoder_features__any_patch_size(patch: int, scene_videos: list[Video]) -> None:
    """Patch 14 does not divide 256: what is left over at the right and below is not seen."""
    encoder = create_encoder("vit_nano", patch_size=patch, image_size=4 * patch).eval()
    for resize in ("interpolate", "recompute"):
        how = Following(size=None, resize=resize)  # type: ignore[arg-type]
        features, grid = encoder_features(encoder, scene_videos[0], how)
        assert grid == (256 // patch, 256 // patch)
        assert features(1).shape == (64, *grid)
        masks = list(segment(scene_videos[0], features, grid, patch, how))
        assert all(mask.shape == (256, 256) for mask in masks)
    encoder = create_encoder("vit_nano", patch_size=patch, image_size=4 * patch, in_channels=1)
    with pytest.raises(ValueError, match="takes 1 channels, but videos have 3"):
        encoder_features(encoder, scene_videos[0], how)


def test_evaluate__means_are_over_objects(scene_videos: list[Video]) -> None:
    encoder = create_encoder("vit_nano", patch_size=16, image_size=64).eval()
    found = evaluate_videos(encoder, scene_videos, "scenes-video", Following(size=None))
    objects = found.details["objects"]
    assert len(objects) == sum(int(video.mask(0).max()) for video in scene_videos)
    mean = {name: np.mean([one[name]["mean"] for one in objects]) for name in "JF"}
    assert found.result["J"] == pytest.approx(mean["J"])
    assert found.result["J&F"] == pytest.approx((mean["J"] + mean["F"]) / 2)
    truth = [scene_videos[0].mask(frame) for frame in range(FRAMES)]
    measured = measure(scene_videos[0], truth)
    assert measured is not None
    assert all(one["J"]["mean"] == one["F"]["mean"] == 100 for one in measured)
    assert (
        measure(replace(scene_videos[0], masks=[*scene_videos[0].masks[:-1], None]), truth) is None
    )
