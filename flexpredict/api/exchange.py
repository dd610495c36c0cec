"""Weights in and out."""

from pathlib import Path
from typing import TYPE_CHECKING

from flexpredict.api.pretraining import folder_of
from flexpredict.engine.encoders import Which
from flexpredict.model.vit import Resize, Size
from flexpredict.progress import say

if TYPE_CHECKING:
    from flexpredict.interop.account import Account
    from flexpredict.interop.baselines import Pool
    from flexpredict.interop.exporting import Exported, Target
    from flexpredict.interop.forensics import Finding
    from flexpredict.interop.graph import Output
    from flexpredict.interop.importing import Method


def import_weights(
    source: str | Path,
    out: str | Path,
    *,
    encoder: Which | None = None,
    method: "Method | None" = None,
    model: str | None = None,
    image_size: Size | None = None,
    resize: Resize | None = None,
    pool: "Pool | None" = None,
) -> "Account":
    """Makes a run folder of the weights of others; gives an account of every key.

    source: a released I-JEPA or StoP checkpoint, what `export` wrote, a timm state dict, or a model
        folder of Hugging Face or timm. Nothing in it is executed.
    encoder: of a file with two, target by default; of a file with one, what it is.
    method, model: what the file does not tell, or is expected to be.
    image_size: other than trained at; position tables are then made by `resize`.
    pool: wraps a model folder of transformers (MAE, DINOv2, BEiT, …) as a baseline, with an image
        as its mean patch token, its class token, or both.
    """
    if pool is not None:
        if (model, image_size, resize, method) != (None,) * 4:
            raise ValueError(
                "--pool wraps a model as it is: leave out --model, --method, --image-size and "
                "--resize"
            )
        from flexpredict.interop.baselines import import_baseline

        return import_baseline(Path(source), Path(out), pool, encoder)
    from flexpredict.files import check_empty
    from flexpredict.interop.files import read_foreign
    from flexpredict.interop.importing import convert, write_run

    check_empty(Path(out))
    say(f"reading {source}")
    foreign = read_foreign(Path(source))
    found = convert(
        foreign,
        encoder=encoder,
        method=method,
        model=model,
        image_size=image_size,
        resize=resize,
    )
    say(f"every key fits; writing {out}")
    write_run(found, Path(out), foreign.path)
    return found.account


def export(
    run: str | Path,
    out: str | Path,
    to: "Target",
    *,
    encoder: Which = "target",
    output: "Output" = "features",
    dynamic_size: Resize | None = None,
    licence: str | None = None,
) -> "Exported":
    """Writes a run's encoder for timm, huggingface or onnx, or the whole run for torch.

    The outputs of both are compared on the same images; an export that differs is not kept.

    output: of an ONNX graph, features (B, D) or maps (B, D, h, w).
    dynamic_size: an ONNX graph takes any size, and makes positions in this way.
    licence: of the weights, for the model card.
    """
    from flexpredict.interop import exporting

    return exporting.export(
        folder_of(run),
        Path(out),
        to,
        which=encoder,
        output=output,
        dynamic_size=dynamic_size,
        licence=licence,
        told=say,
    )


def push(folder: str | Path, to: str, *, private: bool = False) -> str:
    """Uploads an exported folder to the Hugging Face hub as `owner/name`, or copies it to a path
    (one that begins with ., / or ~); gives its address."""
    from flexpredict.interop import hub

    return hub.push(Path(folder), to, private=private)


def pull(source: str, out: str | Path, *, revision: str | None = None) -> Path:
    """Downloads a model folder from the hub, or copies it from a path, for `import_weights`."""
    from flexpredict.interop import hub

    return hub.pull(source, Path(out), revision=revision)


def inspect_weights(source: str | Path) -> "list[Finding]":
    """What a released checkpoint tells about its training; nothing is loaded into a model."""
    from flexpredict.interop import files, forensics

    return forensics.inspect_weights(files.read_foreign(Path(source)))
