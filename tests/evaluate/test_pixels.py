"""Mean colours as an encoder: by definition, through an evaluation, and what it cannot do."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import flexpredict as fp
from flexpredict.engine.encoders import encoder_digest
from flexpredict.model.pixels import PixelMeans


def test_features__are_means_of_patches() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 12), dtype=torch.uint8)
    encoder = PixelMeans((2, 3), 4, mean=(0.5,) * 3, std=(0.5,) * 3)
    blocks = images.numpy().reshape(2, 3, 2, 4, 3, 4).mean(axis=(3, 5))
    wanted = (blocks / 255 - 0.5) / 0.5
    np.testing.assert_allclose(encoder.features(images), wanted.reshape(2, -1), atol=1e-6)
    np.testing.assert_allclose(encoder.feature_maps(images)[0], wanted, atol=1e-6)
    larger = images.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    np.testing.assert_allclose(encoder.features(larger), wanted.reshape(2, -1), atol=1e-6)
    assert encoder_digest(encoder) != encoder_digest(PixelMeans((2, 3), 4))


def test_pixels__are_evaluated_like_any_encoder(
    runs: list[Path], photos: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"  # evaluations are kept in it, and the runs are for all tests
    shutil.copytree(runs[0], run)
    found = fp.knn(run, data=photos, encoder="pixels", device="cpu")
    assert found.encoder == "pixels"
    assert found.result["accuracy"] > 0
    again = fp.probe(run, data=photos, encoder="pixels", epochs=1, device="cpu")
    assert again.layers == 1
    with pytest.raises(ValueError, match="pixels have one layer"):
        fp.knn(run, data=photos, encoder="pixels", layers=2, device="cpu")
    with pytest.raises(ValueError, match="no weights to fine-tune"):
        fp.finetune(run, data=photos, encoder="pixels", device="cpu")
