"""Weight files of others, read without executing anything in them."""

import hashlib
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.serialization import safe_globals

from flexpredict.engine.checkpoint import read_weights

Layout = Literal["released", "flexpredict", "huggingface", "timm"]
ENCODERS = {"target": "target_encoder", "context": "encoder"}
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PREPROCESSING = "preprocessor_config.json"
OWN = "flexpredict"  # what our own exports add, wherever a layout has room for it
TORCH_FILE = "checkpoint.pth.tar"  # of our own exports
_WRAPPERS = ("state_dict", "model")
_PREFIXES = re.compile(r"^((module|_orig_mod)\.)*(ijepa\.)?")
_PICKLED, _PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# What a number of NumPy's takes, a loss for example; none of it executes anything.
_SCALAR = np.float64(0).__reduce__()[0]
_NUMBERS: list[Any] = [
    np.dtype,
    np.dtypes.Float64DType,
    np.dtypes.Float32DType,
    np.dtypes.Int64DType,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file as it was found. Tensors may still be on disk."""

    path: Path
    layout: Layout
    parts: dict[str, dict[str, Tensor]]  # encoder, target_encoder, predictor; prefixes are off
    facts: dict[str, Any] = field(default_factory=dict)  # whatever else is in the file
    config: dict[str, Any] = field(default_factory=dict)  # of a folder's config.json


def read_foreign(path: Path) -> Foreign:
    """A released checkpoint, a state dict, or a folder of Hugging Face or timm."""
    if path.is_dir() and not (path / CONFIG).exists() and (path / TORCH_FILE).is_file():
        path /= TORCH_FILE  # what `export --to torch` wrote
    if path.is_dir():
        config = read_config(path)
        weights = _folder_weights(path)
        layout: Layout = "timm" if "architecture" in config else "huggingface"
        return Foreign(path, layout, {"encoder": bare(weights)}, config=config)
    content = _read(path)
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{path} holds no weights: expected a dictionary of tensors by name")
    parts = {}
    for name in ("encoder", "target_encoder", "predictor"):
        if _is_weights(content.get(name)):
            parts[name] = bare(content[name])
        elif odd := _odd_weight(content.get(name)):
            raise ValueError(f"{path}: {name} holds {odd}: expected weights, which are fractions")
    facts = {str(key): value for key, value in content.items() if key not in parts}
    if parts:
        whole = isinstance(facts.get(OWN), Mapping) and "settings" in facts[OWN]
        return Foreign(path, "flexpredict" if whole else "released", parts, facts)
    for wrapper in _WRAPPERS:
        if _is_weights(content.get(wrapper)):
            content = content[wrapper]
            facts.pop(wrapper)
            break
    else:
        facts = {}
    if not _is_weights(content):
        raise ValueError(
            f"{path} holds {_some(content)}: expected encoder, target_encoder and predictor, as in "
            f"released checkpoints, or the weights of one encoder"
        )
    weights = bare(content)
    theirs = any(name.startswith("embeddings.") for name in weights)
    return Foreign(path, "huggingface" if theirs else "timm", {"encoder": weights}, facts)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} is no model folder: expected {CONFIG} and {SINGLE} in it")
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not readable as JSON: expected the settings of a model")
    return config


def digest_of(path: Path) -> str:
    """A digest of a file, or of the weights in a folder."""
    digest = hashlib.sha256()
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.safetensors")) or sorted(path.glob("*.bin"))
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def steps_of(optimiser: Any) -> list[int]:
    """The steps that an optimiser's state has counted, one for each parameter."""
    slots = optimiser.get("state") if isinstance(optimiser, Mapping) else None
    if not isinstance(slots, Mapping):
        return []
    counts = [slot.get("step") for slot in slots.values() if isinstance(slot, Mapping)]
    return [int(count) for count in counts if isinstance(count, int | float | Tensor)]


def bare(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefixes that wrappers leave.

    `module.` is of DDP, `_orig_mod.` of torch.compile, `ijepa.` of a classifier.
    """
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        short = _PREFIXES.sub("", name)
        if short in found:
            raise ValueError(f"{short} is there twice, once as {name}: which one counts is unclear")
        found[short] = value
    return found


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path} does not exist: expected a weight file or a model folder")
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        # Warnings are of odd pickles, which are refused below.
        with warnings.catch_warnings(action="ignore"), safe_globals(_NUMBERS):
            return torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path) or None
            )
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise ValueError(
                f"{path} is no weight file: expected what torch.save writes, or .safetensors"
            ) from None
        raise ValueError(
            f"{path} asks for {refused[1]}, which is code and not data, so it was not opened: "
            f"expected tensors, numbers and text only"
        ) from None
    except Exception:  # what is no pickle makes torch stumble in any way there is
        raise ValueError(
            f"{path} is cut off or damaged, or no weight file ({path.stat().st_size:,} bytes): "
            f"fetch it again"
        ) from None


def _folder_weights(folder: Path) -> dict[str, Tensor]:
    """safetensors if there are any, else pickles, of which nothing is executed."""
    for single, index in ((SINGLE, INDEX), (_PICKLED, _PICKLED_INDEX)):
        if (folder / single).is_file():
            files = [single]
        elif (folder / index).is_file():
            files = _listed(folder / index)
        else:
            continue
        weights: dict[str, Tensor] = {}
        for name in files:
            found = _read(folder / Path(name).name)
            if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
                raise ValueError(f"{folder / name} holds no weights: expected tensors by name")
            weights |= found
        return weights
    raise ValueError(f"{folder} has no weights: expected {SINGLE} or {_PICKLED} in it")


def _listed(index: Path) -> list[str]:
    """The files that an index names."""
    try:
        return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index} does not say which weight is in which file") from None


def _odd_weight(value: Any) -> str | None:
    """What makes a dictionary of tensors no dictionary of weights."""
    if not isinstance(value, Mapping) or not any(isinstance(x, Tensor) for x in value.values()):
        return None
    return next(
        (
            f"{name}, {one.dtype if isinstance(one, Tensor) else type(one).__name__}"
            for name, one in value.items()
            if not _is_weights({name: one})
        ),
        None,
    )


def _is_weights(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(
            isinstance(key, str) and isinstance(one, Tensor) and one.is_floating_point()
            for key, one in value.items()
        )
    )


def _some(content: Mapping[Any, Any]) -> str:
    keys = [str(key) for key in content]
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
