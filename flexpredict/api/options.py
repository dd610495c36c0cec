"""What evaluations take from Python, where nobody else would ask whether it makes sense."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from flexpredict.model.vit import Resize, Size
from flexpredict.written import meant

Encoders = Literal["target", "context", "untrained", "pixels"]
_LEAST = {"neighbours": 1, "layers": 1, "draws": 1, "epochs": 1, "size": 16}  # as in the shell


class On(TypedDict, total=False):
    """What an encoder is evaluated on, the same for all evaluations.

    task: a named one, with its `data`; or any labelled images, as `data` or `train` and `test`.
    encoder: target, context, untrained for weights as drawn from the run's seed, or pixels for the
        mean colours of its patches.
    image_size: other than the encoder's own; positions are then made by `resize`.
    """

    task: str | None
    data: str | Path | None
    train: str | Path | None
    test: str | Path | None
    encoder: Encoders
    image_size: Size | None
    resize: Resize
    device: str | None


def check_options(method: Callable[..., Any], given: Iterable[str]) -> None:
    """Whether an evaluation takes what it is given; Python itself does not ask what `on` holds."""
    taken = inspect.signature(method).parameters
    known = sorted({*taken, *(On.__annotations__ if "on" in taken else ())} - {"run", "on"})
    for name in given:
        if name not in known:
            hint = meant(name, known, f"it takes {', '.join(known)}")
            raise ValueError(f"{method.__name__.strip('_')} has no option {name!r}: {hint}")


def check_values(given: Mapping[str, Any]) -> None:
    """Whether options have values that make sense, as far as that can be told before the work."""
    for name, least in _LEAST.items():
        value = given.get(name)
        if value is not None and not (isinstance(value, int | np.integer) and value >= least):
            raise ValueError(f"{name}={value!r}: expected a whole number, at least {least}")
    if not (temperature := given.get("temperature", 1)) > 0:
        raise ValueError(f"temperature={temperature}: expected more than 0")
    if (distances := given.get("distances")) is not None and not (
        len(distances) and min(distances) > 0
    ):
        raise ValueError(f"distances={list(distances)}: expected pixels, at least 1 each")
    if (resize := given.get("resize")) not in (None, *get_args(Resize)):
        raise ValueError(f"resize={resize!r}: choose one of {', '.join(get_args(Resize))}")
