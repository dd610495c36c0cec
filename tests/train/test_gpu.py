"""On a GPU: the same run in bfloat16 and float16, masks and noise drawn there. `pytest -m gpu`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexpredict as fp
from flexpredict.data.sources import MemorySource

pytestmark = pytest.mark.gpu

SMALL: dict[str, Any] = {
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "steps": 30, "log_every": 1, "checkpoint_every": 10, "workers": 0, "lr": 2e-3, "ema": 0.9,
    "positions": "sincos",
}  # fmt: skip


def _losses(run: Path) -> np.ndarray:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss"] for line in lines])


@pytest.mark.parametrize(
    ("precision", "rtol"), [("float32", 1e-3), ("bfloat16", 3e-2), ("float16", 3e-2)]
)
def test_cuda__losses_follow_the_cpu(
    precision: str, rtol: float, pictures: np.ndarray, tmp_path: Path
) -> None:
    """Deterministic positions: masks and crops are the same bits on both devices."""
    fp.pretrain(pictures, tmp_path / "cpu", device="cpu", **SMALL)
    fp.pretrain(pictures, tmp_path / "gpu", device="cuda", **SMALL | {"precision": precision})
    np.testing.assert_allclose(_losses(tmp_path / "gpu"), _losses(tmp_path / "cpu"), rtol=rtol)


@pytest.mark.parametrize("masking", ["even", "paper"])
def test_cuda__resume_goes_on(masking: str, pictures: np.ndarray, tmp_path: Path) -> None:
    """The loss after the checkpoint is the one that the uninterrupted run had."""
    settings = SMALL | {"positions": "stop", "masking": masking, "augment": "crop-flip-gray-blur"}
    fp.pretrain(pictures, tmp_path / "whole", device="cuda", **settings)

    class Dying(MemorySource):
        reads = 0

        def read(self, index: int) -> np.ndarray:
            self.reads += 1
            if self.reads > 15 * 16:
                raise KeyboardInterrupt
            return super().read(index)

    with pytest.raises(KeyboardInterrupt):
        fp.pretrain(Dying(pictures), tmp_path / "parts", device="cuda", **settings)
    fp.pretrain(pictures, tmp_path / "parts", device="cuda", resume=True, **settings)
    np.testing.assert_allclose(_losses(tmp_path / "parts"), _losses(tmp_path / "whole"), rtol=1e-2)


@pytest.mark.parametrize("sampler", [fp.PaperMasks((14, 14)), fp.EvenMasks((14, 14))])
def test_cuda__masks_are_drawn_there(sampler: Any) -> None:
    masks = sampler.sample(256, torch.Generator("cuda").manual_seed(0))
    assert masks.context.is_cuda
    for context, targets in zip(masks.context.tolist(), masks.targets.tolist(), strict=True):
        assert not set(context) & {place for block in targets for place in block}


def test_cuda__features_equal_the_cpus(pictures: np.ndarray, tmp_path: Path) -> None:
    fp.pretrain(pictures, tmp_path / "run", device="cpu", **SMALL)
    cpu, gpu = (fp.features(tmp_path / "run", pictures, device=d).features for d in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu, cpu, rtol=1e-2, atol=2e-3)
