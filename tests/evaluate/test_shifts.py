"""Images that move, and an encoder that does not care."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command
from PIL import Image

import flexpredict as fp
from flexpredict.evaluate.shifts import moved


def test_moved__goes_where_it_is_told_and_mirrors_the_border() -> None:
    image = torch.arange(20, dtype=torch.uint8).view(1, 1, 4, 5)
    assert moved(image, 0, 0) is image
    right = moved(image, 0, 2)
    assert right[0, 0, 0].tolist() == [2, 1, 0, 1, 2]
    down = moved(image, 1, 0)
    assert down[0, 0, :, 0].tolist() == [5, 0, 5, 10]
    up_left = moved(moved(image, -1, 0), 0, -1)
    torch.testing.assert_close(up_left[..., :3, :4], image[..., 1:, 1:])
    assert right.dtype == torch.uint8


@pytest.fixture
def run(pictures: np.ndarray, tmp_path: Path) -> Path:
    fp.pretrain(
        pictures, tmp_path / "run", model="vit_nano", patch_size=4, image_size=32, steps=2,
        batch_size=8, device="cpu", workers=0,
    )  # fmt: skip
    return tmp_path / "run"


@pytest.fixture
def labelled(pictures: np.ndarray, tmp_path: Path) -> Path:
    for place, pixels in enumerate(pictures[:40]):
        part = "val" if place % 4 == 0 else "train"
        folder = tmp_path / "labelled" / part / f"{place % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{place}.png")
    return tmp_path / "labelled"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Images of one colour, which look the same wherever they are moved."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for name, low in (("dark", 0), ("light", 180)):
            folder = tmp_path / "plain" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                colour = rng.integers(low, low + 60, 3).astype(np.uint8)
                pixels = np.broadcast_to(colour, (32, 32, 3)).copy()
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "plain"


def test_shifts__what_does_not_change_is_alike_and_as_easy(run: Path, plain: Path) -> None:
    found = fp.shifts(run, data=plain, distances=[1, 5], device="cpu").result
    assert found["likeness_1"] == pytest.approx(1, abs=1e-5)
    assert found["likeness_5"] == pytest.approx(1, abs=1e-5)
    assert found["accuracy"] == found["accuracy_1"] == found["accuracy_5"] == 100


def test_shifts__what_changes_is_less_alike_the_farther_it_goes(
    run: Path, labelled: Path, command: Command
) -> None:
    code, text, _ = command("shifts", run, "--data", labelled, "--device", "cpu", "--json")
    assert code == 0
    found = json.loads(text)["result"]
    assert 1 > found["likeness_1"] > found["likeness_4"] > found["likeness_16"]
    exact = fp.knn(run, data=labelled, neighbours=1, device="cpu").result["ridge"]
    assert found["accuracy"] == pytest.approx(exact)
    assert list((run / "evaluations").glob("*-shifts-ridge*.json"))


def test_shifts__a_distance_counts_once(run: Path, labelled: Path) -> None:
    once = fp.shifts(run, data=labelled, distances=[2])
    assert fp.shifts(run, data=labelled, distances=[2, 2]).result == once.result


def test_shifts__too_far_is_one_sentence(run: Path, labelled: Path, command: Command) -> None:
    code, _, errors = command("shifts", run, "--data", labelled, "--distances", "40")
    assert code == 2
    assert "cannot be moved by 40 pixels: ask for less with --distances" in errors
    code, _, errors = command("shifts", run, "--data", labelled, "--distances", "1,-2")
    assert code == 2
    assert "--distances takes pixels as 1,2,4, not '1,-2'" in errors
