"""In which number format a step is computed. Weights are always float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16", "float16"]


def compute_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the GPU has it, float16 on older GPUs, float32 elsewhere.

    A CPU without bfloat16 units is several times slower in it than in float32.
    """
    if precision != "auto":
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[precision]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def grad_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Scales the loss where gradients could vanish, which is in float16 alone."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)


@contextmanager
def fast_products(device: torch.device | str) -> Iterator[None]:
    """On a GPU, products of float32 matrices by its tensor cores: ten bits of each factor's
    fraction instead of 23, several times as fast.
    """
    before = torch.get_float32_matmul_precision()
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
