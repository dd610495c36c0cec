"""What each weight of an encoder is called elsewhere.

Ours are the names of the released checkpoints and of timm. Hugging Face has two sets: that of its
weight files, and that of the modules of transformers 5.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Style = Literal["original", "huggingface", "huggingface-module"]
Names = dict[str, tuple[str, ...]]  # ours -> theirs; several are stacked, one above the other


class _Words(NamedTuple):
    block: str
    qkv: tuple[str, str, str]
    parts: Mapping[str, str]


_ATTENTION = "attention.attention."
_WORDS = {
    "huggingface": _Words(
        "encoder.layer.",
        (f"{_ATTENTION}query", f"{_ATTENTION}key", f"{_ATTENTION}value"),
        {
            "norm1": "layernorm_before",
            "attn.proj": "attention.output.dense",
            "norm2": "layernorm_after",
            "mlp.fc1": "intermediate.dense",
            "mlp.fc2": "output.dense",
        },
    ),
    "huggingface-module": _Words(
        "layers.",
        ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        {
            "norm1": "layernorm_before",
            "attn.proj": "attention.o_proj",
            "norm2": "layernorm_after",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        },
    ),
}
# Weights of others that an encoder has no use for, and why.
LEFT_OUT = {
    "pooler.": "takes token 0, which is a patch like any other here",
    "classifier.": "a classification head",
    "head.": "a classification head",
    "embeddings.mask_token": "hides patches in pretraining, not in use",
}


def names_of(style: Style, depth: int) -> Names:
    """Every weight of an encoder of this depth."""
    ours = ["pos_embed"]
    ours += [f"{part}.{kind}" for part in ("patch_embed.proj", "norm") for kind in _KINDS]
    if style == "original":
        layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        ours += [f"blocks.{i}.{x}.{kind}" for i in range(depth) for x in layers for kind in _KINDS]
        return {name: (name,) for name in ours}
    words = _WORDS[style]
    names: Names = {"pos_embed": ("embeddings.position_embeddings",)}
    for kind in _KINDS:
        names[f"patch_embed.proj.{kind}"] = (f"embeddings.patch_embeddings.projection.{kind}",)
        names[f"norm.{kind}"] = (f"layernorm.{kind}",)
    for i in range(depth):
        block = f"{words.block}{i}."
        for kind in _KINDS:
            stacked = tuple(f"{block}{part}.{kind}" for part in words.qkv)
            names[f"blocks.{i}.attn.qkv.{kind}"] = stacked
            for mine, theirs in words.parts.items():
                names[f"blocks.{i}.{mine}.{kind}"] = (f"{block}{theirs}.{kind}",)
    return names


_KINDS = ("weight", "bias")


def to_hugging_face(weights: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
    """An encoder's weights under the names of Hugging Face's files."""
    renamed: dict[str, Tensor] = {}
    for ours, theirs in names_of("huggingface", depth).items():
        parts = weights[ours].chunk(len(theirs))
        renamed |= {name: part.contiguous() for name, part in zip(theirs, parts, strict=True)}
    return renamed


def stacked(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
