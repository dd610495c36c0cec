from typing import Any

import pytest
import torch

from flexpredict.config import settings_from
from flexpredict.engine import precision
from flexpredict.model import kernels
from flexpredict.model.blocks import Block

CPU = torch.device("cpu")


def test_kernels__that_fail_are_not_used_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no C compiler\nand much more")

    monkeypatch.setattr(kernels, "allowed", True)
    monkeypatch.setattr(Block, "part", broken)
    before = torch.random.get_rng_state()
    with (
        torch.inference_mode(),
        pytest.warns(UserWarning, match="plain operations are used.*RuntimeError: no C compiler$"),
    ):
        precision._try_kernels.__wrapped__(CPU)
    assert not kernels.allowed
    assert torch.equal(torch.random.get_rng_state(), before)


def test_kernels__that_work_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is found out where nothing has gradients."""
    monkeypatch.setattr(kernels, "allowed", True)
    with torch.inference_mode():
        precision._try_kernels.__wrapped__(CPU)
    assert kernels.allowed


def test_float8__is_bfloat16_with_other_products_and_needs_a_gpu() -> None:
    assert precision.compute_dtype("float8", CPU) == torch.bfloat16
    assert settings_from({"precision": "float8", "steps": 1}).precision == "float8"
    with pytest.raises(ValueError, match="precision=float8 needs a GPU with float8 units"):
        precision.to_float8([], CPU)
