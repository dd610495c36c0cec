"""Copies of weights that are made at once give what autocast's own copies give, to the bit."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flexpredict import build
from flexpredict.config import settings_from
from flexpredict.model.blocks import run_blocks
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.mae import Mae
from flexpredict.train.chunks import Chunks
from flexpredict.train.narrow import Narrow

BF16 = torch.bfloat16
CPU = torch.device("cpu")


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _compute(objective: IJepa | Mae, pictures: np.ndarray) -> Tensor:
    settings = settings_from({"chunk_size": 8, "seed": 3})
    chunks = Chunks(build.build_sampler(settings, objective.encoder.grid), 0, 8)
    images = torch.from_numpy(pictures[:16]).permute(0, 3, 1, 2)
    (plans,) = chunks(0, 0, 16)
    with torch.autocast("cpu", dtype=BF16):
        loss: Tensor = objective(images, chunks.views(plans, CPU))
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["ijepa", "mae"])
def test_used__is_autocast(kind: str, checkpointing: bool, pictures: np.ndarray) -> None:
    settings = settings_from({
        "model": "vit_nano", "patch_size": 4, "image_size": 32, "objective": kind,
        "masking": "even" if kind == "ijepa" else "random", "grad_checkpointing": checkpointing,
    })  # fmt: skip
    plain = build.build_objective(settings)
    other = copy.deepcopy(plain)
    narrow = Narrow(other, BF16)
    before = {name: p.data_ptr() for name, p in other.named_parameters()}
    for _ in range(2):  # the second time copies have to follow the weights
        loss = _compute(plain, pictures)
        with narrow.used():
            found = _compute(other, pictures)
            assert {p.dtype for p in other.encoder.blocks[0].mlp.parameters()} == {
                torch.float32, BF16
            }  # fmt: skip
        assert torch.equal(found, loss)
        theirs, ours = _gradients(plain), _gradients(other)
        assert set(ours) == set(theirs)
        for name, gradient in theirs.items():
            assert ours[name].dtype == torch.float32
            assert torch.equal(ours[name], gradient), name
        with torch.no_grad():
            for model in (plain, other):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= parameter.grad
                        parameter.grad = None
    assert {name: p.data_ptr() for name, p in other.named_parameters()} == before


def test_used__the_target_encoder_converts_no_more_than_it_must() -> None:
    """Each would be a kernel by itself, in every step."""
    settings = settings_from({"model": "vit_nano", "patch_size": 4, "image_size": 32})
    objective = build.build_objective(settings)
    assert isinstance(objective, IJepa)
    narrow = Narrow(objective, BF16)
    blocks = objective.target_encoder.blocks
    shapes = {parameter.shape for parameter in blocks.parameters()}
    tokens = torch.randn(16, 64, 64, dtype=torch.float32)

    def converted() -> int:
        seen = torch.profiler.profile(record_shapes=True)
        with seen, torch.no_grad(), torch.autocast("cpu", dtype=BF16):
            run_blocks(blocks, tokens)
        copies = (event for event in seen.events() if event.name == "aten::_to_copy")
        return sum(torch.Size(event.input_shapes[0]) in shapes for event in copies)

    # Biases that plain operations add after products, of proj and fc2, stay as they are: our
    # kernels add them in float32.
    assert converted() == 8 * len(blocks)
    with narrow.used():
        assert converted() == 2 * len(blocks)


def test_used__weights_come_back_after_a_failure() -> None:
    objective = build.build_objective(settings_from({"model": "vit_nano"}))
    narrow, weight = Narrow(objective, BF16), objective.encoder.blocks[0].attn.qkv.weight
    with pytest.raises(RuntimeError, match="stop"), narrow.used():
        raise RuntimeError("stop")
    assert objective.encoder.blocks[0].attn.qkv.weight is weight
    assert weight.grad is None
