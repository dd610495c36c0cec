"""The encoder of a run: written when the run is done, loadable at any time before."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from flexpredict.engine import checkpoint
from flexpredict.files import write_text
from flexpredict.model.vit import Encoder, is_sincos

WEIGHTS, DESCRIPTION = "encoder.safetensors", "encoder.json"
Which = Literal["target", "context"]


def describe_encoder(run: Path, encoder: Encoder, about: Mapping[str, Any]) -> None:
    """Writes what is needed to make the encoder again."""
    text = json.dumps({"architecture": encoder.architecture, **about}, indent=2)
    write_text(run / DESCRIPTION, text + "\n")


def save_encoder(run: Path, encoder: Encoder, about: Mapping[str, Any]) -> None:
    """Writes a finished encoder: weights and description."""
    checkpoint.write_weights(run / WEIGHTS, encoder.state_dict())
    describe_encoder(run, encoder, about)


def load_encoder(path: Path, which: Which = "target") -> Encoder:
    """The encoder of a run folder: the finished one, else that of the newest checkpoint."""
    if which not in ("target", "context"):
        raise ValueError(f"encoder={which!r}: choose 'target' or 'context'")
    run = path.parent if path.name == WEIGHTS else path
    if not (run / DESCRIPTION).is_file():
        raise ValueError(f"{path} is no run: expected a folder with {DESCRIPTION}")
    try:
        described = json.loads((run / DESCRIPTION).read_text("utf-8"))
        if "pool" in described["architecture"]:
            raise ValueError("it is a wrapped model, which can be evaluated only")
        encoder = Encoder(**described["architecture"])
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{run / DESCRIPTION} does not describe an encoder: {error}") from None
    encoder.load_state_dict(_weights(run, which, described.get("encoder", "target")))
    encoder.sincos = is_sincos(encoder.pos_embed, encoder.grid)
    return encoder.eval().requires_grad_(False)


def encoder_digest(encoder: Encoder) -> str:
    """A name for these very weights and what they are: other weights, other name."""
    digest = hashlib.sha256(json.dumps(encoder.architecture, sort_keys=True).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _weights(run: Path, which: Which, finished: Which) -> dict[str, Any]:
    if which == finished and (run / WEIGHTS).is_file():
        return checkpoint.read_weights(run / WEIGHTS)
    newest = checkpoint.newest(run)
    if newest is None:
        if (run / WEIGHTS).is_file():
            raise ValueError(
                f"{run} holds one encoder, the {finished} encoder: ask for that, with --encoder "
                f"{finished}"
            )
        raise ValueError(f"{run} has no checkpoint yet: nothing to load the {which} encoder from")
    weights = checkpoint.read_weights(newest / checkpoint.MODEL)
    follows = any(name.startswith("target_encoder.") for name in weights)
    # MAE has one encoder, which is its own target.
    prefix = "target_encoder." if which == "target" and follows else "encoder."
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }
