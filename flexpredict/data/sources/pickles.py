"""Reading pickles of plain values and uint8 arrays without running anything they name.

A pickle is a program that may call any function. Here every name it may use is a stand-in: calling
one records the arguments, and afterwards the recorded tree is turned into arrays by hand. All other
names are refused.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RECONSTRUCT = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
_ENCODE = "_codecs.encode"  # how Python 3 writes bytes for Python 2
_KNOWN = frozenset({*_RECONSTRUCT, _ENCODE, "numpy.ndarray", "numpy.dtype"})


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle, byte strings as keys made text, uint8 arrays restored."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: expected the file as it was published") from None
    try:
        value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__}, not a dictionary")
        return {text(key): _restored(item) for key, item in value.items()}
    except _Refused as refused:
        raise ValueError(
            f"{path} asks for {refused}, which no data set needs: nothing of it was run, "
            f"fetch the file again from its publisher"
        ) from None
    except Exception as error:  # a damaged pickle fails in a dozen ways, MemoryError among them
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}): fetch it again"
        ) from None


def text(value: str | bytes) -> str:
    """A string of Python 2 or 3."""
    return value.decode() if isinstance(value, bytes) else str(value)


class _Refused(Exception):
    """A name that is not known to be harmless."""


class _Record:
    """What a call would have made: what was called, with what, and the state set afterwards."""

    def __init__(self, called: str, arguments: tuple[Any, ...]) -> None:
        self.called, self.arguments = called, arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _StandIn:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> Any:
        if self.name == _ENCODE:  # done at once: the result may be the key of a dictionary
            return arguments[0].encode("latin1") if isinstance(arguments[0], str) else b""
        return _Record(self.name, arguments)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise _Refused(f"{module}.{name}")
        return _StandIn(f"{module}.{name}")  # a new one each time: pickles can set attributes


def _restored(value: Any) -> Any:
    return _array(value) if isinstance(value, _Record) else value


def _array(record: _Record) -> NDArray[np.uint8]:
    """The array that numpy's own `_reconstruct` and `__setstate__` would have made."""
    if record.called not in _RECONSTRUCT:
        raise ValueError(f"{record.called} outside an array")
    _, shape, kind, column_major, data = record.state
    if kind.called != "numpy.dtype" or text(kind.arguments[0]) != "u1":
        raise ValueError("an array that is not uint8")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if column_major else "C")
