from typing import Any

import pytest
import torch

from flexpredict.config import settings_from
from flexpredict.engine import precision
from flexpredict.model import kernels
from flexpredict.model.blocks import Block

CPU = torch.device("cpu")


def _on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """As far as kernels are concerned; the device stays the CPU."""
    monkeypatch.setattr(kernels, "allowed", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def test_kernels__that_fail_are_not_used_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no C compiler\nand much more")

    _on_a_gpu(monkeypatch, (9, 0))
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
    _on_a_gpu(monkeypatch, (8, 0))
    with torch.inference_mode():
        precision._try_kernels.__wrapped__(CPU)
    assert kernels.allowed


def test_kernels__are_not_for_gpus_before_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    _on_a_gpu(monkeypatch, (7, 5))
    precision._try_kernels.__wrapped__(CPU)
    assert not kernels.allowed


@pytest.mark.parametrize(("units", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto__is_bfloat16_only_where_a_gpu_has_units_for_it(
    units: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch says that a GPU has it, too, where it is only emulated."""
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation or units,
    )
    assert precision.compute_dtype("auto", torch.device("cuda")) == dtype
    assert precision.compute_dtype("auto", CPU) == torch.float32


def test_float8__is_bfloat16_with_other_products_and_needs_a_gpu() -> None:
    assert precision.compute_dtype("float8", CPU) == torch.bfloat16
    assert settings_from({"precision": "float8", "steps": 1}).precision == "float8"
    with pytest.raises(ValueError, match="precision=float8 needs a GPU with float8 units"):
        precision.to_float8([], CPU)
