"""What is not installed with the core is asked for by name."""

from importlib import import_module
from typing import Any


def need(module: str, extra: str) -> Any:
    """A module of an extra, or a sentence that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{module} cannot be imported ({error}): install it with pip install "
            f"'flexpredict[{extra}]'"
        ) from None
