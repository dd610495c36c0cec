"""Vision models of transformers under our evaluations: wrapped, not rewritten."""

import inspect
import json
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import DESCRIPTION, WEIGHTS, Which
from flexpredict.interop.account import Account
from flexpredict.interop.extras import need
from flexpredict.interop.files import digest_of, read_config
from flexpredict.interop.folders import check_empty, fresh_folder
from flexpredict.interop.shapes import statistics_of
from flexpredict.model.vit import Encoder, Resize

Pool = Literal["mean", "class", "both"]
# By the model_type of a config.json.
CLASSES = {
    "ijepa": "IJepaModel",
    "vit": "ViTModel",
    "vit_mae": "ViTMAEModel",
    "vit_msn": "ViTMSNModel",
    "beit": "BeitModel",
    "data2vec-vision": "Data2VecVisionModel",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
}


class Baseline(Encoder):
    """A model of transformers that takes images and gives features as our encoders do.

    pool: what stands for an image: the mean of the patch tokens, the class token, or both, one
        beside the other. Maps are of patch tokens, always.
    """

    def __init__(
        self, transformers: str, config: dict[str, Any], pool: Pool, mean: Any, std: Any
    ) -> None:
        nn.Module.__init__(self)  # an encoder in what it does, not in what it is made of
        model = _make(transformers, config)
        self.architecture = {
            "transformers": transformers, "config": config, "pool": pool, "mean": mean, "std": std,
        }  # fmt: skip
        self.pool = pool
        self.dim = model.config.hidden_size * (2 if pool == "both" else 1)
        self.patch_size = model.config.patch_size
        size = model.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        self.grid = (height // self.patch_size, width // self.patch_size)
        self.in_channels = model.config.num_channels
        # Under our names first, so that fine-tuning knows its layers.
        self.patch_embed = model.embeddings.patch_embeddings
        self.blocks = model.layers if hasattr(model, "layers") else model.encoder.layer
        self.norm = model.layernorm
        self.model = model
        self.pos_embed = nn.Parameter(torch.zeros(0), requires_grad=False)  # where the model is
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)
        known = inspect.signature(type(model).forward).parameters
        self._takes_sizes, self._takes_noise = (
            name in known for name in ("interpolate_pos_encoding", "noise")
        )

    def forward(
        self,
        images: Tensor,
        keep: Tensor | None = None,
        places: Tensor | None = None,
        *,
        resize: Resize = "recompute",
    ) -> Tensor:
        """Tokens whose mean is the feature: (B, N, D), or (B, 1, D) where a class token counts."""
        assert keep is None
        assert places is None
        (tokens,) = self.layers(images, 1, resize=resize)
        return (
            self._patches(tokens, images) if self.pool == "mean" else self._pooled(tokens, images)
        )

    def layers(
        self, images: Tensor, count: int, *, norm: bool = True, resize: Resize = "recompute"
    ) -> list[Tensor]:
        """All tokens of the last layers, those before the patches first."""
        if not 1 <= count <= len(self.blocks):
            raise ValueError(f"this encoder has {len(self.blocks)} layers: cannot give {count}")
        grid = tuple(side // self.patch_size for side in images.shape[-2:])
        options: dict[str, Any] = {}
        if grid != self.grid:
            if resize == "recompute":
                raise ValueError(
                    "the positions of this model can only be interpolated to another size: choose "
                    "resize=interpolate"
                )
            options = {"interpolate_pos_encoding": True} if self._takes_sizes else {}
        if self._takes_noise:  # by which MAE orders the patches that it keeps, here all
            order = torch.arange(grid[0] * grid[1], device=images.device, dtype=torch.float32)
            options["noise"] = order.expand(len(images), -1)
        found = self.model(self.normalise(images), output_hidden_states=True, **options)
        chosen = found.hidden_states[-count:]
        return [self.norm(x) if norm else x for x in chosen]

    @torch.inference_mode()
    def features(self, images: Tensor, *, layers: int = 1, resize: Resize = "recompute") -> Tensor:
        """(B, D · layers)"""
        found = self.layers(images, layers, resize=resize)
        return torch.cat([self._pooled(x, images)[:, 0] for x in found], dim=1)

    @torch.inference_mode()
    def feature_maps(
        self, images: Tensor, *, layers: int = 1, resize: Resize = "recompute"
    ) -> list[Tensor]:
        rows, columns = (side // self.patch_size for side in images.shape[-2:])
        found = self.layers(images, layers, resize=resize)
        patches = [self._patches(x, images) for x in found]
        return [x.transpose(1, 2).unflatten(2, (rows, columns)) for x in patches]

    def _patches(self, tokens: Tensor, images: Tensor) -> Tensor:
        rows, columns = (side // self.patch_size for side in images.shape[-2:])
        return tokens[:, -rows * columns :]

    def _pooled(self, tokens: Tensor, images: Tensor) -> Tensor:
        """(B, 1, D)"""
        patches = self._patches(tokens, images)
        mean = patches.mean(1, keepdim=True)
        if self.pool == "mean":
            return mean
        if tokens.shape[1] == patches.shape[1]:
            raise ValueError("this model has no class token: import it with --pool mean")
        first = tokens[:, :1]
        return first if self.pool == "class" else torch.cat([mean, first], dim=2)


def import_baseline(source: Path, out: Path, pool: Pool, which: Which | None = None) -> Account:
    """Makes a run folder of a model folder; the classes of transformers do the rest."""
    if pool not in get_args(Pool):
        raise ValueError(f"pool={pool!r}: choose one of {', '.join(get_args(Pool))}")
    check_empty(out)
    kind = read_config(source).get("model_type")
    if kind not in CLASSES:
        raise ValueError(f"{source} is of model_type {kind}: expected one of {', '.join(CLASSES)}")
    transformers = need("transformers", "hf")
    transformers.utils.logging.disable_progress_bar()
    cls = getattr(transformers, CLASSES[kind])
    found, told = cls.from_pretrained(
        source, use_safetensors=True, output_loading_info=True, **_without_pooler(cls)
    )
    bad = [*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])]
    if bad:
        raise ValueError(
            f"{source} does not fit {CLASSES[kind]}: {len(bad)} keys are missing or of another "
            f"shape, {sorted(bad)[0]} first"
        )
    mean, std = statistics_of(source, found.config.num_channels)
    config = json.loads(found.config.to_json_string(use_diff=False))
    model = Baseline(CLASSES[kind], config, pool, mean, std)
    weights = found.state_dict()
    model.model.load_state_dict(weights)
    if pool != "mean":
        height, width = (side * model.patch_size for side in model.grid)
        model.eval().features(torch.zeros(1, model.in_channels, height, width))  # has the token?
    described = {
        "architecture": model.architecture,
        "encoder": which or ("context" if kind == "ijepa" else "target"),
        "imported": {"sha256": digest_of(source), "layout": "transformers", "file": source.name},
    }
    with fresh_folder(out) as folder:
        checkpoint.write_weights(folder / WEIGHTS, weights)
        checkpoint.write_text(folder / DESCRIPTION, json.dumps(described, indent=2) + "\n")
    return Account(
        keys={"model": len(weights)},
        used={"model": []},
        left_out=dict.fromkeys(sorted(told["unexpected_keys"]), f"not of {CLASSES[kind]}"),
        notes=[f"{CLASSES[kind]} of transformers, wrapped; an image is its {_POOLS[pool]}"],
    )


_POOLS = {"mean": "mean patch token", "class": "class token", "both": "mean patch and class token"}


def load_baseline(run: Path, which: Which) -> Baseline | None:
    """The baseline in a run folder; None where there is an encoder of ours."""
    try:
        described = json.loads((run / DESCRIPTION).read_text())
        if "transformers" not in described["architecture"]:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if described["encoder"] != which:
        held = described["encoder"]
        raise ValueError(f"{run} holds one encoder, the {held} encoder: ask for that")
    model = Baseline(**described["architecture"])
    model.model.load_state_dict(checkpoint.read_weights(run / WEIGHTS))
    return model.eval().requires_grad_(False)


def _make(name: str, config: dict[str, Any]) -> Any:
    transformers = need("transformers", "hf")
    if name not in CLASSES.values():
        raise ValueError(f"{name} is no model that can be wrapped: {', '.join(CLASSES.values())}")
    cls = getattr(transformers, name)
    made = cls.config_class(**config)
    if name == "ViTMAEModel":
        made.mask_ratio = 0.0
    return cls(made, **_without_pooler(cls))


def _without_pooler(cls: Any) -> dict[str, bool]:
    known = inspect.signature(cls.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in known else {}
