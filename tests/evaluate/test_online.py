import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import flexpredict as fp
from flexpredict.data.sources import MemorySource
from flexpredict.evaluate.online import OnlineProbe
from flexpredict.model.vit import create_encoder


def test_pretrain__follows_a_labelled_folder(
    pictures: np.ndarray, photos: Path, tmp_path: Path
) -> None:
    """Every two epochs of six steps and at the end; what is learnt does not change by it."""
    settings = {
        "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "steps": 15,
        "workers": 0, "log_every": 5, "device": "cpu",
    }  # fmt: skip
    plain = fp.pretrain(pictures, tmp_path / "plain", **settings)
    probed = fp.pretrain(
        pictures, tmp_path / "probed", probe_data=str(photos), probe_every=2, **settings
    )
    assert plain.loss == probed.loss
    lines = [json.loads(line) for line in (probed.run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 5, 10, 12, 15]
    assert [line["step"] for line in lines if "knn" in line] == [12, 15]
    assert all(0 <= line["ridge"] <= 100 for line in lines if "knn" in line)


def test_pretrain__train_and_val_are_no_classes(
    pictures: np.ndarray, photos: Path, tmp_path: Path
) -> None:
    for part in ("train", "val"):
        shutil.copytree(photos, tmp_path / "labelled" / part)
    settings = {
        "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "steps": 2,
        "workers": 0, "device": "cpu",
    }  # fmt: skip
    found = []
    for name, data in (("whole", "labelled"), ("train", "labelled/train")):
        fp.pretrain(pictures, tmp_path / name, probe_data=str(tmp_path / data), **settings)
        line = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        found.append((line["knn"], line["ridge"]))
    assert found[0] == found[1]


def test_online__tells_separable_classes_apart() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    images = rng.integers(0, 60, (80, 16, 16, 3)) + labels[:, None, None, None] * 150
    encoder = create_encoder("vit_nano", patch_size=8, image_size=16).eval()
    probe = OnlineProbe(MemorySource(images.astype(np.uint8), labels), (16, 16))
    assert probe(encoder) == {"knn": 100.0, "ridge": 100.0}
    with pytest.raises(ValueError, match="online probe has no labels"):
        OnlineProbe(MemorySource(images.astype(np.uint8)), (16, 16))
