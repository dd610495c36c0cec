"""A run's encoder in the files of other tools; each export ends with a look at both outputs."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from flexpredict import run_folder
from flexpredict.config import read_settings
from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import WEIGHTS, Which, load_encoder
from flexpredict.files import fresh_folder, write_text
from flexpredict.interop.card import card
from flexpredict.interop.extras import need, timm_here
from flexpredict.interop.files import (
    CONFIG,
    ENCODERS,
    OWN,
    PREPROCESSING,
    SINGLE,
    TORCH_FILE,
    read_foreign,
)
from flexpredict.interop.graph import Output, run_graph, write_graph
from flexpredict.interop.names import to_hugging_face
from flexpredict.model.blocks import NORM_EPS
from flexpredict.model.vit import Encoder, Resize
from flexpredict.version import VERSION

Target = Literal["timm", "huggingface", "onnx", "torch"]
# Of the largest output, or of 1 where outputs are smaller.
TOLERANCES: dict[Target, float] = {"timm": 1e-5, "huggingface": 1e-5, "onnx": 1e-4, "torch": 0.0}
ONNX_FILE = "encoder.onnx"
_BILINEAR = 2  # Pillow's number


@dataclass(frozen=True, slots=True)
class _Asked:
    run: Path
    folder: Path
    encoder: Encoder
    which: Which
    output: Output
    dynamic_size: Resize | None


@dataclass(frozen=True, slots=True)
class Exported:
    folder: Path
    files: list[str]
    difference: float | None  # None: the other tool cannot be imported here
    tolerance: float
    checked: str


def export(
    run: Path,
    out: Path,
    to: Target,
    *,
    which: Which = "target",
    output: Output = "features",
    dynamic_size: Resize | None = None,
    licence: str | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Writes a folder, compares, and only then gives it its name."""
    if to not in TOLERANCES:
        raise ValueError(f"--to {to}: choose one of {', '.join(TOLERANCES)}")
    encoder = load_encoder(run, which)
    if dynamic_size == "recompute" and not encoder.sincos:
        raise ValueError("the encoder's positions are not sin-cos: choose --resize interpolate")
    with fresh_folder(out) as folder:
        told(f"writing {out} for {to}")
        other = _WRITERS[to](_Asked(run, folder, encoder, which, output, dynamic_size))
        difference, checked = None, f"{to} cannot be imported here: outputs were not compared."
        if other is not None:
            told("comparing its outputs with FlexPredict's")
            difference, scale, where = _compare(encoder, other)
            if difference > TOLERANCES[to] * scale:
                raise RuntimeError(
                    f"the export to {to} differs from FlexPredict by {difference:.3g} {where}, "
                    f"more than {TOLERANCES[to] * scale:.3g}: it was not kept"
                )
            checked = f"Largest difference to FlexPredict: {difference:.3g} {where}."
        text = card(run, out.resolve().name, encoder, which, to, licence, checked)
        write_text(folder / "README.md", text)
    files = sorted(path.name for path in out.iterdir())
    return Exported(out, files, difference, TOLERANCES[to], checked)


# Images (normalised) to what the other tool gives and what we give for the same.
Other = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class _Both:
    give: Other
    other_sizes: bool  # whether it takes any


def _compare(encoder: Encoder, other: _Both) -> tuple[float, float, str]:
    """The largest difference over two sizes and two batches, the largest output, and the sizes."""
    patch = encoder.patch_size
    height, width = (side * patch for side in encoder.grid)
    sizes = [(height, width)] + [(height + patch, width + 2 * patch)] * other.other_sizes
    generator = torch.Generator().manual_seed(0)
    difference = scale = 0.0
    for size in sizes:
        for batch in (1, 7):
            images = torch.randn(batch, encoder.in_channels, *size, generator=generator)
            with torch.inference_mode():
                theirs, ours = other.give(images)
            if theirs.shape != ours.shape:
                raise RuntimeError(
                    f"the export gives {tuple(theirs.shape)} where FlexPredict gives "
                    f"{tuple(ours.shape)}: it was not kept"
                )
            difference = max(difference, float((theirs - ours).abs().max()))
            scale = max(scale, float(ours.abs().max()))
    shown = " and ".join(f"{tall}x{wide}" for tall, wide in sizes)
    return difference, max(1.0, scale), f"at {shown} px, batches of 1 and 7, float32"


def _hugging_face(asked: _Asked) -> _Both:
    folder, encoder = asked.folder, asked.encoder
    transformers = need("transformers", "hf")
    shape = encoder.architecture
    size = shape["image_size"]
    config = {
        "architectures": ["IJepaModel"],
        "model_type": "ijepa",
        "hidden_size": shape["dim"],
        "num_hidden_layers": shape["depth"],
        "num_attention_heads": shape["heads"],
        "intermediate_size": round(shape["dim"] * shape["mlp_ratio"]),
        "hidden_act": "gelu",
        "layer_norm_eps": NORM_EPS,
        "qkv_bias": True,
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": shape["patch_size"],
        "num_channels": shape["in_channels"],
        "dtype": "float32",
        OWN: {"encoder": asked.which, "version": VERSION},
    }
    weights = to_hugging_face(encoder.state_dict(), len(encoder.blocks))
    checkpoint.write_weights(folder / SINGLE, weights, {"format": "pt"})
    _write_json(folder / CONFIG, config)
    _write_json(folder / PREPROCESSING, _preprocessing(encoder))
    transformers.utils.logging.disable_progress_bar()
    model, told = transformers.IJepaModel.from_pretrained(folder, output_loading_info=True)
    if any(told.values()):
        raise RuntimeError(f"transformers does not take every key: {told}")
    model.eval()

    def give(images: Tensor) -> tuple[Tensor, Tensor]:
        found = model(images, interpolate_pos_encoding=True).last_hidden_state
        return found, encoder(images, resize="interpolate")

    def give_own_size(images: Tensor) -> tuple[Tensor, Tensor]:
        return model(images).last_hidden_state, encoder(images)

    square = encoder.grid[0] == encoder.grid[1]  # transformers resizes no other tables
    return _Both(give if square else give_own_size, square)


def _timm(asked: _Asked) -> _Both | None:
    folder, encoder = asked.folder, asked.encoder
    shape = encoder.architecture
    arguments = {
        "img_size": list(shape["image_size"]),
        "patch_size": shape["patch_size"],
        "in_chans": shape["in_channels"],
        "embed_dim": shape["dim"],
        "depth": shape["depth"],
        "num_heads": shape["heads"],
        "mlp_ratio": shape["mlp_ratio"],
        "class_token": False,
        "global_pool": "avg",
        "fc_norm": False,
    }
    config = {
        "architecture": "vit_base_patch16_224",  # model_args make it any other
        "num_classes": 0,
        "num_features": shape["dim"],
        "global_pool": "avg",
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [shape["in_channels"], *shape["image_size"]],
            "mean": list(shape["mean"]),
            "std": list(shape["std"]),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "num_classes": 0,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
        OWN: {"encoder": asked.which, "version": VERSION},
    }
    checkpoint.write_weights(folder / SINGLE, encoder.state_dict(), {"format": "pt"})
    _write_json(folder / CONFIG, config)
    timm = timm_here()
    if timm is None:
        return None
    model = timm.create_model("vit_base_patch16_224", num_classes=0, **arguments).eval()
    model.load_state_dict(checkpoint.read_weights(folder / SINGLE))

    def give(images: Tensor) -> tuple[Tensor, Tensor]:
        return model(images), encoder.features(images)

    return _Both(give, other_sizes=False)


def _onnx(asked: _Asked) -> _Both:
    encoder, output, path = asked.encoder, asked.output, asked.folder / ONNX_FILE
    need("onnxruntime", "onnx")
    write_graph(encoder, path, output, asked.dynamic_size)
    _write_json(asked.folder / PREPROCESSING, _preprocessing(encoder))
    resize: Resize = asked.dynamic_size or "recompute"

    def give(images: Tensor) -> tuple[Tensor, Tensor]:
        if output == "features":
            ours = encoder.features(images, resize=resize)
        else:
            ours = encoder.feature_maps(images, resize=resize)[0]
        return run_graph(path, images), ours

    return _Both(give, other_sizes=asked.dynamic_size is not None)


def _torch(asked: _Asked) -> _Both:
    encoder, part, path = asked.encoder, ENCODERS[asked.which], asked.folder / TORCH_FILE
    about = {"architecture": encoder.architecture, "version": VERSION}
    try:
        torch.save(_whole(asked.run) or {part: encoder.state_dict(), OWN: about}, path)
    except RuntimeError:  # torch says where in its own code, not why
        free = shutil.disk_usage(path.parent).free
        why = f"{free / 2**20:.0f} MiB are free"
        raise OSError(errno.EIO, why, str(path)) from None
    parts = read_foreign(path).parts
    again = Encoder(**encoder.architecture).eval()
    again.load_state_dict(parts.get(part) or parts["encoder"])
    return _Both(lambda images: (again(images), encoder(images)), other_sizes=False)


def _whole(run: Path) -> dict[str, Any] | None:
    """All of a run's newest checkpoint, in the layout of released ones, so that it can go on."""
    newest = checkpoint.newest(run)
    if newest is None:
        return None
    state = json.loads((newest / checkpoint.STATE).read_text("utf-8"))
    settings = read_settings(run / run_folder.CONFIG)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in checkpoint.read_weights(newest / checkpoint.MODEL).items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    goes_on = not state.get("imported")
    own = {
        "settings": settings.model_dump(mode="json"),
        "state": state if goes_on else {},
        "finished": (run / WEIGHTS).is_file(),
        "metrics": _text(run / run_folder.METRICS),
        "version": VERSION,
    }
    slots = checkpoint.read_weights(newest / checkpoint.OPTIMIZER)  # by name: <parameter>.<slot>
    facts: dict[str, Any] = {"opt": slots, "scaler": state.get("scaler"), OWN: own}
    if goes_on:
        epoch = state["step"] // (state["images"] // settings.batch_size)  # whole batches alone
        facts |= {"epoch": epoch, "batch_size": settings.batch_size, "world_size": 1}
    return {**parts, **facts}


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


_WRITERS: dict[Target, Callable[[_Asked], _Both | None]] = {
    "huggingface": _hugging_face,
    "timm": _timm,
    "onnx": _onnx,
    "torch": _torch,
}


def _preprocessing(encoder: Encoder) -> dict[str, Any]:
    height, width = encoder.architecture["image_size"]
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(encoder.architecture["mean"]),
        "image_std": list(encoder.architecture["std"]),
    }


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")
