"""Whether kernels of our own, written in Triton, may be used, and where they are launched."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

try:  # comes with torch's GPU builds
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["allowed", "launched_by", "tl", "triton"]

allowed = triton is not None  # engine.precision takes it back where they turn out not to work


def launched_by(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be that of the tensors."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
