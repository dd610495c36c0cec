"""What the weights of an encoder tell of it, and what only a name or a config can."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from flexpredict.interop.files import OWN, PREPROCESSING, Foreign
from flexpredict.interop.names import Style, names_of
from flexpredict.model.vit import IMAGENET_MEAN, IMAGENET_STD, SHAPES, Size, sincos_grid


@dataclass(frozen=True, slots=True)
class Shape:
    style: Style
    dim: int
    depth: int
    hidden: int
    patch_size: int
    in_channels: int
    patches: int
    heads: int
    model: str | None  # of ours that it is

    @classmethod
    def of(cls, foreign: Foreign, part: str, model: str | None) -> "Shape":
        weights = foreign.parts[part]
        style = _style(foreign, weights)
        names = names_of(style, 1)
        blocks = re.compile(re.escape(names["blocks.0.norm1.weight"][0]).replace("0", r"(\d+)", 1))
        depth = sum(1 for name in weights if blocks.fullmatch(name))
        try:
            patch, table, hidden = (
                weights[names[name][0]].shape
                for name in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")
            )
            dim, channels, patch_size, _ = patch
            _, patches, _ = table
        except (KeyError, ValueError):
            raise ValueError(
                f"{foreign.path} holds no encoder that we know: its first keys are "
                f"{', '.join(list(weights)[:3])}; expected those of I-JEPA, timm or Hugging Face"
            ) from None
        found = f"{foreign.path} holds an encoder of width {dim}, depth {depth}, MLP {hidden[0]}"
        known = next(
            (
                name
                for name, one in SHAPES.items()
                if (one.dim, one.depth, round(one.dim * one.mlp_ratio)) == (dim, depth, hidden[0])
            ),
            None,
        )
        if model is not None and model != known:
            if model not in SHAPES:
                raise ValueError(f"--model {model} is not known: choose one of {', '.join(SHAPES)}")
            asked = SHAPES[model]
            raise ValueError(
                f"{found}, which is {known or 'none of ours'}: --model {model} is of width "
                f"{asked.dim} and depth {asked.depth}"
            )
        _check_config(foreign, dim, depth, hidden[0], patch_size, channels, patches)
        heads = _heads(foreign) or (SHAPES[known].heads if known else None)
        if heads is None:
            raise ValueError(
                f"{found}, which is none of {', '.join(SHAPES)}: weights do not tell the number "
                f"of attention heads, so only a folder with a config.json can be imported"
            )
        return cls(style, dim, depth, hidden[0], patch_size, channels, patches, heads, known)


def _style(foreign: Foreign, weights: Mapping[str, Tensor]) -> Style:
    if foreign.layout != "huggingface":
        return "original"
    _check_hugging_face(foreign)
    return (
        "huggingface"
        if any(name.startswith("encoder.layer.") for name in weights)
        else "huggingface-module"
    )


def _check_hugging_face(foreign: Foreign) -> None:
    wanted = {"model_type": "ijepa", "hidden_act": "gelu", "layer_norm_eps": 1e-6, "qkv_bias": True}
    for key, value in wanted.items():
        found = foreign.config.get(key, 1e-12 if key == "layer_norm_eps" else value)  # as theirs
        if foreign.config and found != value:
            raise ValueError(
                f"{foreign.path} has {key}={found}, expected {value}: import it as it is, wrapped, "
                f"with --pool mean"
            )


def _check_config(
    foreign: Foreign, dim: int, depth: int, hidden: int, patch: int, channels: int, patches: int
) -> None:
    """What a folder says of its model has to be true of its weights."""
    arguments = _arguments(foreign)
    found = {
        ("num_hidden_layers", "depth"): depth, ("hidden_size", "embed_dim"): dim,
        ("intermediate_size", ""): hidden, ("patch_size", "patch_size"): patch,
        ("num_channels", "in_chans"): channels,
    }  # fmt: skip
    said = {
        name: (source[name], value)
        for names, value in found.items()
        for name, source in zip(names, (foreign.config, arguments), strict=True)
        if isinstance(source.get(name), int)
    }
    for name, (expected, value) in said.items():
        if expected != value:
            raise ValueError(
                f"{foreign.path}: config.json says {name}={expected}, and by the weights it is "
                f"{value}: weights are missing, or of another model"
            )
    said_size = _size(foreign)
    if said_size is not None and said_size[0] // patch * (said_size[1] // patch) != patches:
        raise ValueError(
            f"{foreign.path} says images of {said_size[0]}x{said_size[1]}, and its weights have "
            f"{patches} positions, for patches of {patch}: they are of another size"
        )


def _size(foreign: Foreign) -> tuple[int, int] | None:
    """Height and width of the images that an encoder was trained on, where a folder says them."""
    own = foreign.facts.get(OWN, {}).get("architecture", {})
    for size in (
        foreign.config.get("image_size"), _arguments(foreign).get("img_size"), own.get("image_size")
    ):  # fmt: skip
        match size:
            case int():
                return size, size
            case [int(height), int(width)]:
                return height, width
    return None


def _arguments(foreign: Foreign) -> Mapping[str, Any]:
    """Those of timm."""
    found = foreign.config.get("model_args") or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"{foreign.path}: model_args in its config.json are no settings")
    return found


def _heads(foreign: Foreign) -> int | None:
    own = foreign.facts.get(OWN, {}).get("architecture", {})
    found = foreign.config.get("num_attention_heads") or _arguments(foreign).get("num_heads")
    found = found or own.get("heads")
    if found is not None and not isinstance(found, int):
        raise ValueError(f"{foreign.path}: {found!r} is no number of attention heads")
    return found


def statistics_of(
    folder: Path, channels: int, said: Mapping[str, Any] | None = None
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of the channels: as said, as the folder says, or as is usual."""
    path = folder / PREPROCESSING
    if not said and path.is_file():
        try:
            found = json.loads(path.read_text("utf-8"))
            said = {"mean": found.get("image_mean"), "std": found.get("image_std")}
        except (ValueError, AttributeError):
            raise ValueError(f"{path} is not readable: expected image_mean and image_std") from None
    said, rgb = said or {}, channels == 3
    mean = list(said.get("mean") or (IMAGENET_MEAN if rgb else (0.5,) * channels))
    std = list(said.get("std") or (IMAGENET_STD if rgb else (0.25,) * channels))
    if not len(mean) == len(std) == channels:
        raise ValueError(
            f"{folder}: {channels} channels need as many means and standard deviations, not "
            f"{len(mean)} and {len(std)}"
        )
    return mean, std


def grid_of(
    foreign: Foreign, shape: Shape, table: Tensor, image_size: Size | None
) -> tuple[int, int]:
    """The grid that the weights were trained on: as the table shows, as is said, or a square."""
    shown, size, patch = sincos_grid(table), _size(foreign), shape.patch_size
    said = (size[0] // patch, size[1] // patch) if size else None
    if size and shown not in (None, said):
        raise ValueError(
            f"{foreign.path} says images of {size[0]}x{size[1]}, and its positions are those of a "
            f"grid of {shown[0]}x{shown[1]}, for patches of {patch}: one of the two is wrong"
        )
    if found := shown or said:
        return found
    side = math.isqrt(shape.patches)
    if side**2 == shape.patches:
        return side, side
    if image_size is not None and not isinstance(image_size, int):
        rows, columns = (length // patch for length in image_size)
        if rows * columns == shape.patches:
            return rows, columns
    raise ValueError(
        f"the weights have {shape.patches} positions, which make no square: say the size they were "
        f"trained at with --image-size HEIGHTxWIDTH"
    )
