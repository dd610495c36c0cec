"""Vision models of transformers and timm under our evaluations: wrapped, not rewritten."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import DESCRIPTION, WEIGHTS, Which
from flexpredict.files import check_empty, fresh_folder, write_text
from flexpredict.interop.account import Account
from flexpredict.interop.extras import need, timm_here
from flexpredict.interop.files import SINGLE, digest_of, read_config
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


class Baseline(Encoder, ABC):
    """A model of others that takes images and gives features as our encoders do.

    pool: what stands for an image: the mean of the patch tokens, the class token, or both, one
        beside the other. Maps are of patch tokens, always.
    """

    model: Any

    def __init__(
        self,
        model: nn.Module,
        *,
        dim: int,
        grid: tuple[int, int],
        patch_size: int,
        pool: Pool,
        mean: Sequence[float],
        std: Sequence[float],
        made_of: dict[str, Any],
    ) -> None:
        nn.Module.__init__(self)  # an encoder in what it does, not in what it is made of
        self.architecture = {**made_of, "pool": pool, "mean": mean, "std": std}
        self.pool = pool
        self.dim = dim * (2 if pool == "both" else 1)
        self.grid, self.patch_size, self.in_channels = grid, patch_size, len(mean)
        self.model = model
        self.pos_embed = nn.Parameter(torch.zeros(0), requires_grad=False)  # where the model is
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    @abstractmethod
    def hidden(self, images: Tensor, count: int, *, other_size: bool) -> list[Tensor]:
        """All tokens of the last layers before the final norm, those of no patch first."""

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
        if grid != self.grid and resize == "recompute":
            raise ValueError(
                "the positions of this model can only be interpolated to another size: choose "
                "resize=interpolate"
            )
        found = self.hidden(self.normalise(images), count, other_size=grid != self.grid)
        return [self.norm(x) if norm else x for x in found]

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


class TransformersModel(Baseline):
    def __init__(
        self, transformers: str, config: dict[str, Any], pool: Pool, mean: Any, std: Any
    ) -> None:
        model = _make(transformers, config)
        size, patch = model.config.image_size, model.config.patch_size
        height, width = (size, size) if isinstance(size, int) else size
        super().__init__(
            model,
            dim=model.config.hidden_size,
            grid=(height // patch, width // patch),
            patch_size=patch,
            pool=pool,
            mean=mean,
            std=std,
            made_of={"transformers": transformers, "config": config},
        )
        # Under our names, and before the model's, so that fine-tuning knows its layers.
        self.patch_embed = model.embeddings.patch_embeddings
        self.blocks = model.layers if hasattr(model, "layers") else model.encoder.layer
        self.norm = model.layernorm
        self._modules["model"] = self._modules.pop("model")
        known = inspect.signature(type(model).forward).parameters
        self._takes_sizes, self._takes_noise = (
            name in known for name in ("interpolate_pos_encoding", "noise")
        )

    def hidden(self, images: Tensor, count: int, *, other_size: bool) -> list[Tensor]:
        interpolate = other_size and self._takes_sizes
        options: dict[str, Any] = {"interpolate_pos_encoding": True} if interpolate else {}
        if self._takes_noise:  # by which MAE orders the patches that it keeps, here all
            rows, columns = (side // self.patch_size for side in images.shape[-2:])
            order = torch.arange(rows * columns, device=images.device, dtype=torch.float32)
            options["noise"] = order.expand(len(images), -1)
        found = self.model(images, output_hidden_states=True, **options)
        return list(found.hidden_states[-count:])


class TimmModel(Baseline):
    def __init__(self, timm: str, arguments: dict[str, Any], pool: Pool, mean: Any, std: Any):
        library = timm_here()
        if library is None:
            raise ValueError(
                "timm cannot be imported here: it needs a torchvision that goes with this torch"
            )
        model = library.create_model(timm, num_classes=0, dynamic_img_size=True, **arguments)
        patch = model.patch_embed.patch_size[0]
        super().__init__(
            model,
            dim=model.embed_dim,
            grid=tuple(model.patch_embed.grid_size),
            patch_size=patch,
            pool=pool,
            mean=mean,
            std=std,
            made_of={"timm": timm, "arguments": arguments},
        )
        self.patch_embed, self.blocks, self.norm = model.patch_embed, model.blocks, model.norm
        self._modules["model"] = self._modules.pop("model")

    def hidden(self, images: Tensor, count: int, *, other_size: bool) -> list[Tensor]:
        del other_size  # it interpolates where it has to
        found = self.model.forward_intermediates(
            images,
            indices=count,
            return_prefix_tokens=True,
            norm=False,
            output_fmt="NLC",
            intermediates_only=True,
        )
        return [torch.cat([before, patches], dim=1) for patches, before in found]


def import_baseline(source: Path, out: Path, pool: Pool, which: Which | None = None) -> Account:
    """Makes a run folder of a model folder; the library that it is of does the rest."""
    if pool not in get_args(Pool):
        raise ValueError(f"pool={pool!r}: choose one of {', '.join(get_args(Pool))}")
    check_empty(out)
    config = read_config(source)
    if "architecture" in config:
        model, left_out = _of_timm(source, config, pool)
        name = config["architecture"]
    else:
        model, left_out = _of_transformers(source, config.get("model_type"), pool)
        name = CLASSES[config["model_type"]]
    if pool != "mean":
        height, width = (side * model.patch_size for side in model.grid)
        model.eval().features(torch.zeros(1, model.in_channels, height, width))  # has the token?
    which = which or ("context" if config.get("model_type") == "ijepa" else "target")
    described = {
        "architecture": model.architecture,
        "encoder": which,
        "imported": {"sha256": digest_of(source), "layout": "wrapped", "file": source.name},
    }
    weights = model.model.state_dict()
    with fresh_folder(out) as folder:
        checkpoint.write_weights(folder / WEIGHTS, weights)
        write_text(folder / DESCRIPTION, json.dumps(described, indent=2) + "\n")
    return Account(
        keys={"model": len(weights)},
        used={"model": []},
        left_out=dict.fromkeys(sorted(left_out), f"not of {name}"),
        notes=[f"{name}, wrapped; an image is its {_POOLS[pool]}"],
        encoder=which,
    )


def _of_transformers(source: Path, kind: Any, pool: Pool) -> tuple[Baseline, list[str]]:
    if kind not in CLASSES:
        raise ValueError(f"{source} is of model_type {kind}: expected one of {', '.join(CLASSES)}")
    transformers = need("transformers", "hf")
    cls = getattr(transformers, CLASSES[kind])
    # Without safetensors it unpickles weights, and nothing but weights.
    safe = True if list(source.glob("*.safetensors*")) else None
    how = {"use_safetensors": safe, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with _quiet(transformers):
        try:
            found, told = cls.from_pretrained(source, **how, **_without_pooler(cls))
        except Exception as error:  # whatever a file that is not as it should be leads to
            reason = f"{type(error).__name__}, {' '.join(str(error).split())[:200]}"
            raise ValueError(f"{source} is not read as {CLASSES[kind]}: {reason}") from None
    bad = [*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])]
    if bad:
        raise ValueError(
            f"{source} does not fit {CLASSES[kind]}: {len(bad)} keys are missing or of another "
            f"shape, {sorted(bad)[0]} first"
        )
    mean, std = statistics_of(source, found.config.num_channels)
    config = json.loads(found.config.to_json_string(use_diff=False))
    model = TransformersModel(CLASSES[kind], config, pool, mean, std)
    model.model.load_state_dict(found.state_dict())
    return model, list(told["unexpected_keys"])


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """What it has to say about keys is in our account."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _of_timm(source: Path, config: dict[str, Any], pool: Pool) -> tuple[Baseline, list[str]]:
    arguments, said = config.get("model_args", {}), config.get("pretrained_cfg")
    mean, std = statistics_of(source, arguments.get("in_chans", 3), said)
    model = TimmModel(config["architecture"], arguments, pool, mean, std)
    weights = checkpoint.read_weights(source / SINGLE)
    heads = [name for name in weights if name.startswith("head.")]
    try:
        model.model.load_state_dict({k: v for k, v in weights.items() if k not in heads})
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{source} does not fit {config['architecture']}: {reason}") from None
    return model, heads


_POOLS = {"mean": "mean patch token", "class": "class token", "both": "mean patch and class token"}


def load_baseline(run: Path, which: Which) -> Baseline | None:
    """The baseline in a run folder; None where there is an encoder of ours."""
    try:
        described = json.loads((run / DESCRIPTION).read_text("utf-8"))
        architecture = described["architecture"]
        if "pool" not in architecture:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if described["encoder"] != which:
        held = described["encoder"]
        raise ValueError(
            f"{run} holds one encoder, the {held} encoder: ask for that, with --encoder {held}"
        )
    kind = TimmModel if "timm" in architecture else TransformersModel
    model: Baseline = kind(**architecture)
    model.model.load_state_dict(checkpoint.read_weights(run / WEIGHTS))
    model.fixed = frozenset(name for name, p in model.named_parameters() if not p.requires_grad)
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
