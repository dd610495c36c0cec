"""Boxes of objects from features: IoU by hand, pictures with a disc, and the real boxes."""

import io
import json
from pathlib import Path

import miniatures
import numpy as np
import pytest
import torch
from conftest import Command
from PIL import Image

import flexpredict as fp
from flexpredict.engine.encoders import save_encoder
from flexpredict.evaluate import features
from flexpredict.evaluate.boxes import box_probe, iou, open_boxes
from flexpredict.evaluate.ridge import Sums, fits
from flexpredict.evaluate.subject import Subject

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((0, 0, 4, 2), (0, 0, 4, 2), 1),
        ((0, 0, 4, 2), (2, 0, 6, 2), 1 / 3),
        ((0, 0, 4, 4), (1, 1, 3, 3), 1 / 4),
        ((0, 0, 2, 2), (2, 0, 4, 2), 0),  # they touch
        ((0, 0, 2, 2), (3, 3, 4, 4), 0),
        ((2, 2, 0, 0), (0, 0, 4, 4), 0),  # sides in the wrong order
        ((1, 1, 1, 3), (0, 0, 4, 4), 0),
        ((1, 1, 1, 1), (1, 1, 1, 1), 0),
        ((3, 0, 1, 4), (5, 0, 0, 4), 0),
    ],
)
def test_iou__by_hand(one: tuple[int, ...], other: tuple[int, ...], expected: float) -> None:
    a, b = (torch.tensor([box]).double() for box in (one, other))
    for left, right in ((a, b), (b, a), (a * 3 - 7, b * 3 - 7)):
        assert iou(left, right).item() == pytest.approx(expected)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    folder = tmp_path / "run"
    folder.mkdir()
    save_encoder(folder, fp.create_encoder("vit_nano", patch_size=4, image_size=32), {})
    return folder


def test_boxes__from_the_shell(run: Path, tmp_path: Path, command: Command) -> None:
    data = miniatures.boxes(tmp_path / "discs.npz", 300)
    code, out, err = command("boxes", run, "--data", data, "--device=cpu", "--json")
    assert code == 0, err
    found = json.loads(out)
    (saved,) = (run / "evaluations").glob("*.json")
    assert json.loads(saved.read_text()) == found
    result, details = found["result"], found["details"]
    assert set(result) == {"iou", "iou_over_50", "mean_box_iou", "mean_box_iou_over_50"}
    assert result["iou"] > result["mean_box_iou"] + 3
    assert (found["method"], found["protocol"], found["task"]) == ("boxes", "ridge", "discs")
    assert details["left_out"] == 30
    assert details["train_images"] + details["test_images"] == 270
    code, out, err = command("boxes", run, "--data", data, "--device=cpu")
    assert code == 0, err
    assert f"{result['iou']:.1f} %" in out
    assert f"{result['mean_box_iou']:.1f} %" in out
    assert "the mean box of train" in out


@pytest.mark.parametrize("size", [(48, 24), (48, 48)])
def test_boxes__are_those_of_the_normal_equations(
    size: tuple[int, int], run: Path, tmp_path: Path
) -> None:
    """By another way to every number: features, shares of an image, ridge, IoU."""
    path = miniatures.boxes(tmp_path / "discs.npz", size=size)
    found = fp.boxes(run, data=path, device="cpu", layers=2, seed=1)
    arrays = dict(np.load(path))
    kept = arrays["bbox"][:, 0] < arrays["bbox"][:, 2]
    train, test = kept & (arrays["split"] == 0), kept & (arrays["split"] == 1)
    pixels = []
    for start, stop in zip(arrays["offset"], arrays["offset"][1:], strict=False):
        image = Image.open(io.BytesIO(arrays["jpeg"][start:stop].tobytes()))
        pixels.append(np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)))
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    seen = fp.load(run).features(images, layers=2)
    shares = torch.from_numpy(arrays["bbox"] / np.array(size * 2))
    (fit,) = fits(
        Sums.of(seen[train], lambda rows: shares[train][rows], torch.arange(train.sum())),
        (found.details["penalty"],),
    )
    true = iou(fit(seen[test]), shares[test])
    assert found.result["iou"] == pytest.approx(100 * true.mean().item(), abs=0.2)
    usual = shares[train].mean(0).expand(int(test.sum()), 4)
    assert found.result["mean_box_iou"] == pytest.approx(
        100 * iou(usual, shares[test]).mean().item()
    )
    assert found.result["mean_box_iou_over_50"] == pytest.approx(
        100 * (iou(usual, shares[test]) >= 0.5).double().mean().item()
    )
    assert found.name.startswith("discs-boxes-ridge-layers=2-seed=1-")


def test_boxes__of_images_in_shape_need_no_features_after_a_probe(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, subject = open_boxes(miniatures.boxes(tmp_path / "discs.npz")), Subject(fp.load(run))
    first = box_probe(subject, task)
    monkeypatch.setenv("FLEXPREDICT_CACHE", str(tmp_path / "another"))
    for source in (task.train, task.test):
        features.cached(subject.encoder, source, layers=4)
    monkeypatch.setattr(features, "extract", None)
    assert box_probe(subject, task) == first


def test_boxes__wrong_data_gets_one_sentence(run: Path, tmp_path: Path, command: Command) -> None:
    arrays = dict(np.load(miniatures.boxes(tmp_path / "whole.npz")))
    flat = arrays["bbox"] * np.array([1, 1, 0, 1], dtype=np.uint8)
    wrong = {
        "flat": {"bbox": flat},
        "small": {"bbox": flat[:5]},
        "train": {"split": np.zeros(60, dtype=np.uint8)},
    }
    for name, change in wrong.items():
        np.savez(tmp_path / f"{name}.npz", allow_pickle=False, **arrays | change)
    del arrays["bbox"]
    np.savez(tmp_path / "plain.npz", allow_pickle=False, **arrays)
    for name, sentence in {
        "flat.npz": "none of the train images has a box with width and height",
        "small.npz": "60 images, but 5 entries in bbox",
        "train.npz": "has no images in its split val",
        "plain.npz": "plain.npz has no boxes: expected tiny-imagenet, or packed .npz files",
        "run": "run has no boxes: expected",
        "none.npz": "no such file",
    }.items():
        code, out, err = command("boxes", run, "--data", tmp_path / name, "--device=cpu")
        assert (code, out) == (2, ""), name
        assert sentence in err
        assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder shared/data is not beside the project")
def test_boxes__of_tiny_imagenet() -> None:
    """Even an untrained encoder knows more of them than their mean."""
    torch.manual_seed(0)
    encoder = fp.create_encoder("vit_nano", patch_size=8, image_size=64).eval()
    task = open_boxes(SHARED / "tiny-imagenet-200.partA.npz")
    found = box_probe(Subject(encoder), task)
    assert found.details["left_out"] == 236
    assert found.details["train_images"] + found.details["test_images"] == 36_850 - 236
    assert found.result["iou"] > found.result["mean_box_iou"] > 30
