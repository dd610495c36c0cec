"""What loaders send between processes, small tensors packed into one.

torch sends every tensor through a file in shared memory and a socket of its own, which takes longer
than to copy what is small. Arrays within the message would be quicker still, but who is killed
while writing a long message leaves its reader waiting for ever.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SMALL, _ALIGNED = 1 << 18, 16  # bytes: of a tensor that is packed, and between two


class _Place(NamedTuple):
    """Where a tensor lies among the bytes of a parcel."""

    start: int
    stop: int
    dtype: torch.dtype
    shape: torch.Size


class Parcel:
    """Tensors within lists, tuples and dicts, and whatever else is there."""

    def __init__(self, content: Any) -> None:
        parts = [torch.empty(0, dtype=torch.uint8)]
        end = 0

        def pack(tensor: Tensor) -> Tensor | _Place:
            nonlocal end
            if tensor.nbytes > _SMALL or not tensor.is_contiguous():  # its order would be lost
                return tensor
            start, stop = end, end + tensor.nbytes
            end = -(-stop // _ALIGNED) * _ALIGNED
            parts.append(tensor.reshape(-1).view(torch.uint8))
            parts.append(torch.zeros(end - stop, dtype=torch.uint8))
            return _Place(start, stop, tensor.dtype, tensor.shape)

        self._shell = _each(content, Tensor, pack)
        self._bytes = torch.cat(parts)

    def open(self) -> Any:
        def unpack(place: _Place) -> Tensor:
            return self._bytes[place.start : place.stop].view(place.dtype).view(place.shape)

        return _each(self._shell, _Place, unpack)

    def pin_memory(self) -> Any:
        """Opened. Called by torch, in the thread that takes what workers send."""
        self._shell = _each(self._shell, Tensor, Tensor.pin_memory)
        self._bytes = self._bytes.pin_memory()
        return self.open()


def _each(found: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Changes what is of a kind."""
    if isinstance(found, kind):
        return change(found)
    if isinstance(found, dict):
        return {key: _each(one, kind, change) for key, one in found.items()}
    if isinstance(found, list | tuple):
        changed = [_each(one, kind, change) for one in found]
        if hasattr(found, "_fields"):
            return type(found)(*changed)
        return changed if isinstance(found, list) else tuple(changed)
    return found
