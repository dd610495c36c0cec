"""In which number format a step is computed. Weights are always float32."""

import functools
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from flexpredict.model import kernels
from flexpredict.model.blocks import Block
from flexpredict.model.vit import Encoder
from flexpredict.notice import Notice

Precision = Literal["auto", "float32", "bfloat16", "float16"]
_OLDEST = (8, 0)  # GPUs before Ampere have less room than our kernels take for longer sequences


def compute_dtype(precision: Precision | Literal["float8"], device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the GPU has it, float16 on older GPUs, float32 elsewhere.

    A CPU without bfloat16 units is several times slower in it than in float32.
    float8: all but the products that `to_float8` changes is computed in bfloat16.
    """
    if precision != "auto":
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
            "float8": torch.bfloat16,
        }[precision]
    if device.type != "cuda":
        return torch.float32
    units = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if units else torch.float16


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    if device.type == "cuda" and dtype != torch.float32:
        _try_kernels(device)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


@functools.cache
def _try_kernels(device: torch.device) -> None:
    """Computes a small block once; where our kernels fail, plain operations do their work."""
    if not kernels.allowed:
        return
    if torch.cuda.get_device_capability(device) < _OLDEST:
        kernels.allowed = False
        return
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            block = Block(32, 2).to(device)
            x = torch.zeros(1, 16, 32, device=device)
            with torch.autocast(device.type, dtype=torch.float16):
                block(x).sum().backward()
                with torch.no_grad():
                    block(x)
            block.norm2.weight.tolist()  # waits until all is done
    except Exception as error:  # a compiler that is missing, a GPU it does not know, …
        kernels.allowed = False
        warnings.warn(
            f"the fast kernels do not work here and plain operations are used instead, which is "
            f"slower: {type(error).__name__}: {str(error).strip().splitlines()[0]}",
            Notice,
            stacklevel=2,
        )


def autocast_frozen(device: torch.device, precision: Precision = "auto") -> torch.autocast:
    """For encoders that are only looked at: as a rule the format in which they would be trained."""
    return autocast(device, compute_dtype(precision, device))


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


def to_float8(encoders: Iterable[Encoder], device: torch.device) -> None:
    """Lets the blocks of encoders multiply in float8, scaled by each tensor's largest number.

    Weights, their names and the optimiser's state stay float32. For wide encoders: products of
    narrow ones are over before the scales are found.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise ValueError(
            "precision=float8 needs a GPU with float8 units (compute capability 8.9 or newer): "
            "set precision=auto"
        )
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError:
        raise ValueError(
            "precision=float8 needs torchao: install flexpredict[float8], or set precision=auto"
        ) from None
    for encoder in encoders:
        convert_to_float8_training(encoder.blocks)


def compile_parts(objective: nn.Module) -> None:
    """Compiles every block by itself, and the parts around blocks that are many small operations.

    All blocks of one shape share their code, so that this takes seconds where a whole step would
    take minutes. Names of weights stay as they are.
    """
    # Encoders × shapes × with and without gradients: more than dynamo's default of 8.
    torch._dynamo.config.recompile_limit = max(256, torch._dynamo.config.recompile_limit)
    torch._dynamo.config.accumulated_recompile_limit = max(
        4096, torch._dynamo.config.accumulated_recompile_limit
    )
    torch._dynamo.config.suppress_errors = True  # what cannot be compiled is computed as it stands
    # Float32 products are asked for where they are made: no need to hear of TF32.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
    for part in objective.modules():
        if isinstance(part, Block):
            part.part = torch.compile(part.part, dynamic=False)  # type: ignore[method-assign]
        elif isinstance(part, Encoder):
            part.embed = torch.compile(part.embed, dynamic=False)  # type: ignore[method-assign]
