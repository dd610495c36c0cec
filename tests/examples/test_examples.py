"""Every example runs, on the embedded data."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flexpredict.data.sources.scene_videos import scene_video_folder
from flexpredict.data.sources.scenes import scene_task
from flexpredict.evaluate.metrics import sequence_measures

EXAMPLES = Path(__file__).parents[2] / "examples"


def _main(name: str, *arguments: str | Path) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"]([str(one) for one in arguments])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes as PNG files, a folder for each distance."""
    folder = tmp_path_factory.mktemp("scenes")
    scenes = scene_task("scenes-dist", "train", count=96, size=64)
    assert scenes.labels is not None
    for index, label in enumerate(scenes.labels):
        path = folder / f"distance-{label}" / f"{index:03d}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = scenes.read(index)
        assert isinstance(pixels, np.ndarray)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = ("model=vit_nano", "patch_size=8", "image_size=64", "batch_size=16", "steps=20")
    _main("pretrain_folder.py", photos, folder, *(f"--set={one}" for one in settings))
    return folder


def test_search(run: Path, photos: Path) -> None:
    query = next(photos.rglob("*.png"))
    best = _main("search.py", run, photos, query, "--count", "3")
    assert len(set(best)) == 3
    assert str(query.relative_to(photos)) not in best


def test_few_shot(run: Path, photos: Path) -> None:
    assert 0 < _main("few_shot.py", run, photos, "--shots", "3", "--draws", "5") <= 100


def test_segment_video(run: Path, tmp_path: Path) -> None:
    """Objects that move are followed: far better than masks that stand still or are empty."""
    root = scene_video_folder(count=1, frames=6, size=128)
    frames = root / "JPEGImages/480p/scene-000"
    truths = sorted((root / "Annotations/480p/scene-000").glob("*.png"))
    masks = _main("segment_video.py", run, frames, truths[0], tmp_path / "masks", "--size", "128")
    assert [path.stem for path in masks] == [path.stem for path in truths]
    found = [np.asarray(Image.open(path)) for path in masks]
    truth = [np.asarray(Image.open(path)) for path in truths]
    regions = [np.mean(region) for region, _ in sequence_measures(truth, found)]
    assert np.mean(regions) > 0.2
