"""Checkpoints in the layouts that others publish, written from the list of their names and shapes.

The numbers are random; names, shapes, order and nesting are those of the released files.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexpredict.model.positions import sincos_positions

Weights = dict[str, Tensor]


class Published(NamedTuple):
    method: str
    dim: int
    depth: int
    hidden: int
    patch: int
    image: int
    predictor_dim: int
    predictor_depth: int


PUBLISHED = {
    "ijepa-h14": Published("ijepa", 1280, 32, 5120, 14, 224, 384, 12),
    "ijepa-h16-448": Published("ijepa", 1280, 32, 5120, 16, 448, 384, 12),
    "ijepa-g16": Published("ijepa", 1408, 40, 6144, 16, 224, 384, 16),
    "stop-b16": Published("stop", 768, 12, 3072, 16, 224, 384, 6),
    "stop-l16": Published("stop", 1024, 24, 4096, 16, 224, 384, 12),
    "stop-h14": Published("stop", 1280, 32, 5120, 14, 224, 384, 12),
}
SMALL = {
    name: one._replace(dim=64, depth=4, hidden=256, image=4 * one.patch, predictor_dim=32,
                       predictor_depth=2)
    for name, one in PUBLISHED.items()
}  # fmt: skip


def _draw(shapes: dict[str, tuple[int, ...]], seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.02 + ("norm" in name and "weight" in name)
        for name, shape in shapes.items()
    }


def _block(name: str, dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.norm1.weight": (dim,), f"{name}.norm1.bias": (dim,),
        f"{name}.attn.qkv.weight": (3 * dim, dim), f"{name}.attn.qkv.bias": (3 * dim,),
        f"{name}.attn.proj.weight": (dim, dim), f"{name}.attn.proj.bias": (dim,),
        f"{name}.norm2.weight": (dim,), f"{name}.norm2.bias": (dim,),
        f"{name}.mlp.fc1.weight": (hidden, dim), f"{name}.mlp.fc1.bias": (hidden,),
        f"{name}.mlp.fc2.weight": (dim, hidden), f"{name}.mlp.fc2.bias": (dim,),
    }  # fmt: skip


def encoder(one: Published, seed: int) -> Weights:
    shapes = {
        "pos_embed": (1, (one.image // one.patch) ** 2, one.dim),
        "patch_embed.proj.weight": (one.dim, 3, one.patch, one.patch),
        "patch_embed.proj.bias": (one.dim,),
    }
    for index in range(one.depth):
        shapes |= _block(f"blocks.{index}", one.dim, one.hidden)
    weights = _draw(shapes | {"norm.weight": (one.dim,), "norm.bias": (one.dim,)}, seed)
    return weights | {"pos_embed": _table(one, one.dim)}


def predictor(one: Published, seed: int) -> Weights:
    dim, patches = one.predictor_dim, (one.image // one.patch) ** 2
    tables = {"mask_token": (1, 1, dim), "predictor_pos_embed": (1, patches, dim)}
    if one.method == "stop":  # registers them the other way round
        tables = dict(reversed(tables.items()))
    shapes = tables | {"predictor_embed.weight": (dim, one.dim), "predictor_embed.bias": (dim,)}
    for index in range(one.predictor_depth):
        shapes |= _block(f"predictor_blocks.{index}", dim, 4 * dim)
    shapes |= {"predictor_norm.weight": (dim,), "predictor_norm.bias": (dim,)}
    shapes |= {"predictor_proj.weight": (one.dim, dim), "predictor_proj.bias": (one.dim,)}
    weights = _draw(shapes, seed)
    weights["predictor_pos_embed"] = _table(one, dim)
    return weights


def released(one: Published, *, module: bool = True, optimiser: bool = True) -> dict[str, Any]:
    parts = {"encoder": encoder(one, 0), "predictor": predictor(one, 1)}
    parts["target_encoder"] = encoder(one, 2)
    trained = [*parts["encoder"].items(), *parts["predictor"].items()]
    slots = {
        index: {"step": torch.tensor(9.0), "exp_avg": value, "exp_avg_sq": value.square()}
        for index, (name, value) in enumerate(trained)
        if "pos_embed" not in name and not (name == "mask_token" and one.method == "stop")
    }
    if module:
        parts = {
            part: {f"module.{name}": value for name, value in weights.items()}
            for part, weights in parts.items()
        }
    group = {"params": list(range(len(trained))), "lr": 1e-4}
    return {
        **parts,
        "opt": {"state": slots, "param_groups": [group]} if optimiser else None,
        "scaler": None, "epoch": 299, "loss": 0.1, "batch_size": 64, "world_size": 1, "lr": 1e-4,
    }  # fmt: skip


def save(path: Path, one: Published, **changes: Any) -> dict[str, Any]:
    content = released(one) | changes
    torch.save({name: value for name, value in content.items() if value is not ...}, path)
    return content


def hugging_face(weights: Weights) -> Weights:
    """The same encoder under the names of Hugging Face's files, one by one."""
    renamed: Weights = {}
    for name, value in weights.items():
        parts = name.split(".")
        if name == "pos_embed":
            renamed["embeddings.position_embeddings"] = value
        elif parts[0] == "patch_embed":
            renamed[f"embeddings.patch_embeddings.projection.{parts[2]}"] = value
        elif parts[0] == "norm":
            renamed[f"layernorm.{parts[1]}"] = value
        else:
            block, rest = f"encoder.layer.{parts[1]}.", ".".join(parts[2:-1])
            if rest == "attn.qkv":
                rows = len(value) // 3
                for number, which in enumerate(("query", "key", "value")):
                    renamed[f"{block}attention.attention.{which}.{parts[-1]}"] = value[
                        number * rows : (number + 1) * rows
                    ].clone()
            else:
                theirs = {
                    "norm1": "layernorm_before", "norm2": "layernorm_after",
                    "attn.proj": "attention.output.dense", "mlp.fc1": "intermediate.dense",
                    "mlp.fc2": "output.dense",
                }[rest]  # fmt: skip
                renamed[f"{block}{theirs}.{parts[-1]}"] = value
    return renamed


def _table(one: Published, dim: int) -> Tensor:
    side = one.image // one.patch
    assert math.isqrt(side**2) == side
    return sincos_positions(side, side, dim)[None]
