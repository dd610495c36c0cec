"""`precision=float8` trains. CPUs compute its products, too, only slowly."""

import numpy as np
import pytest
import torch

from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.engine import optim, precision
from flexpredict.model.vit import create_encoder
from flexpredict.objective.ijepa import IJepa
from flexpredict.train.chunks import Chunks
from flexpredict.train.step import Step

pytest.importorskip("torchao", reason="torchao is not installed (it comes with the extra `float8`)")
CPU = torch.device("cpu")
SETTINGS = settings_from({
    "model": "vit_nano", "patch_size": 4, "image_size": 32, "batch_size": 16, "chunk_size": 8,
    "positions": "stop",
})  # fmt: skip


def _train(pictures: np.ndarray, *, float8: bool) -> tuple[IJepa, np.ndarray]:
    objective = build.build_objective(SETTINGS).train()
    assert isinstance(objective, IJepa)
    if float8:
        precision.to_float8(objective.encoders.values(), torch.device("cuda"))
    groups = optim.parameter_groups([objective.encoder, objective.predictor])
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    compute = Step(objective, optimizer, device=CPU, dtype=torch.bfloat16)
    chunks = Chunks(build.build_sampler(SETTINGS, objective.encoder.grid), 0, 8)
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    losses = []
    for step in range(24):
        batch = images[torch.arange(16 * step, 16 * (step + 1)) % len(images)]
        views = [chunks.views(plans, CPU) for plans in chunks(0, step, 16)]
        losses.append(float(compute(batch, views, 0.9)[0]))
    return objective, np.array(losses)


def test_float8__losses_follow_those_of_bfloat16(
    pictures: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    plain, expected = _train(pictures, float8=False)
    narrow, losses = _train(pictures, float8=True)
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
    assert not np.allclose(losses, expected, rtol=1e-5)  # its products are others
    assert losses[-4:].mean() < 0.8 * losses[:4].mean()
    # Weights go on as they are, without float8.
    assert list(narrow.state_dict()) == list(plain.state_dict())
    encoder = create_encoder("vit_nano", patch_size=4, image_size=32)
    encoder.load_state_dict(narrow.target_encoder.state_dict())
    some = torch.from_numpy(pictures[:8]).permute(0, 3, 1, 2)
    found, wanted = encoder.features(some), plain.target_encoder.features(some)
    assert torch.nn.functional.cosine_similarity(found, wanted).min() > 0.999
