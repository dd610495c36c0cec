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


def timm_here() -> Any | None:
    """timm, where it can be imported: beside a torch without GPUs its torchvision cannot."""
    try:
        return import_module("timm")
    except Exception:  # torchvision fails in ways of its own
        return None
