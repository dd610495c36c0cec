"""Commands that move weights in and out: import, export, push, pull."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import flexpredict
from flexpredict.cli.shared import Json, app, print_json

Resize = Literal["recompute", "interpolate"]


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A weight file, or a model folder.")],
    out: Annotated[Path | None, typer.Option(help="The run folder to write.")] = None,
    encoder: Annotated[
        Literal["target", "context"] | None,
        typer.Option(
            help="Of two, which, by default the target; of one, what it is, by default the context."
        ),
    ] = None,
    method: Annotated[
        Literal["stop", "ijepa"] | None,
        typer.Option(help="What the predictor was trained as, if its keys tell it wrongly."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="What is expected: vit_base, …; refused if it is another.")
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(help="As 448 or 224x448: other than trained at.")
    ] = None,
    resize: Annotated[Resize | None, typer.Option(help="Positions at another size.")] = None,
    pool: Annotated[
        Literal["mean", "class", "both"] | None,
        typer.Option(help="Wrap a model of transformers: patch mean, class token, or both."),
    ] = None,
    inspect: Annotated[
        bool, typer.Option("--inspect", help="Only say what the file tells about its training.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a run folder of released, timm or Hugging Face weights, every key accounted for.

    Example: `flexpredict import IN1K-vit.h.14-300e.pth.tar --out ijepa-h14/`
    """
    if inspect:
        findings = flexpredict.inspect_weights(source)
        if as_json:
            print_json({"source": str(source), "findings": [asdict(one) for one in findings]})
            return
        for one in findings:
            says = f"  ({one.says})" if one.says else ""
            print(f"{one.what}: {_plain(one.value)}{says}")
        return
    if out is None:
        raise ValueError("say where the run folder goes with --out")
    account = flexpredict.import_weights(
        source,
        out,
        encoder=encoder,
        method=method,
        model=model,
        image_size=_size(image_size),
        resize=resize,
        pool=pool,
    )
    if as_json:
        print_json({"out": str(out), **asdict(account)})
        return
    for line in account.lines():
        print(line)
    which = "" if account.encoder == "target" else f", encoder={account.encoder!r}"
    print(f"{out}: load it with flexpredict.load({str(out)!r}{which})")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    to: Annotated[
        Literal["timm", "huggingface", "onnx", "torch"],
        typer.Option(help="torch: the whole run, to go on elsewhere; else an encoder."),
    ],
    encoder: Annotated[
        Literal["target", "context"], typer.Option(help="Which of the run's encoders.")
    ] = "target",
    output: Annotated[
        Literal["features", "maps"], typer.Option(help="Of an ONNX graph: token means, or maps.")
    ] = "features",
    dynamic_size: Annotated[
        bool, typer.Option("--dynamic-size", help="An ONNX graph for images of any size.")
    ] = False,
    resize: Annotated[Resize, typer.Option(help="Its positions at another size.")] = "recompute",
    license_: Annotated[
        str | None, typer.Option("--license", help="Of the weights, for the model card.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an encoder for other tools, with a model card, and compare the outputs of both.

    Example: `flexpredict export run/ --to huggingface --out my-encoder/`
    """
    found = flexpredict.export(
        run,
        out,
        to,
        encoder=encoder,
        output=output,
        dynamic_size=resize if dynamic_size else None,
        licence=license_,
    )
    if as_json:
        print_json(asdict(found) | {"folder": str(found.folder)})
        return
    print(f"{out}: {', '.join(found.files)}")
    print(found.checked)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="A folder that `export` wrote.")],
    to: Annotated[str, typer.Argument(help="owner/name on the hub, or a path: ./x, /x, ~/x.")],
    private: Annotated[bool, typer.Option("--private", help="For your own eyes.")] = False,
    as_json: Json = False,
) -> None:
    """Upload an exported folder to the Hugging Face hub, or copy it.

    Example: `flexpredict push my-encoder/ me/my-encoder`
    """
    address = flexpredict.push(folder, to, private=private)
    if as_json:
        print_json({"address": address})
    else:
        print(address)


@app.command()
def pull(
    source: Annotated[str, typer.Argument(help="owner/name on the hub, or a path: ./x, /x, ~/x.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    as_json: Json = False,
) -> None:
    """Download a model folder from the Hugging Face hub, or copy it; then import it.

    Example: `flexpredict pull facebook/ijepa_vith14_1k --out ijepa-hf/`
    """
    folder = flexpredict.pull(source, out, revision=revision)
    if as_json:
        print_json({"out": str(folder)})
    else:
        print(f"{folder}: next, flexpredict import {folder} --out run/")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _size(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split("x")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise ValueError(f"--image-size {text}: expected a number, or HEIGHTxWIDTH")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))
