"""Work that can be done at the same time as other work, in a CUDA graph."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def beside(x: Tensor) -> Iterator[Callable[[], None]]:
    """What is computed within runs beside what comes after, until the function given is called.

    That is so while a CUDA graph is captured from x's device, of which it becomes a branch: kernels
    of a small model do not fill a GPU, and those of another branch take the room. Elsewhere nothing
    changes.
    """
    if not x.is_cuda or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    main, side = torch.cuda.current_stream(x.device), _side(x.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


@functools.cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
