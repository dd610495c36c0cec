"""Weights of others become a run folder that every command takes."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from flexpredict.build import build_objective
from flexpredict.config import Settings, recipe_names, settings_from
from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import DESCRIPTION, WEIGHTS, Which
from flexpredict.files import fresh_folder, write_text
from flexpredict.interop.account import Account, take
from flexpredict.interop.files import ENCODERS, OWN, Foreign, digest_of, steps_of
from flexpredict.interop.names import Names, names_of
from flexpredict.interop.shapes import Shape, grid_of, statistics_of
from flexpredict.model.positions import sincos_positions
from flexpredict.model.vit import (
    SHAPES,
    Encoder,
    Resize,
    Size,
    interpolate_positions,
    is_sincos,
)
from flexpredict.run_folder import CONFIG, METRICS

Method = Literal["stop", "ijepa"]
_TABLES = {"predictor": "predictor_pos_embed"}  # else pos_embed
_KNOWN_FACTS = {"scaler", "epoch", "loss", "batch_size", "world_size", "lr"}


@dataclass(slots=True)
class Imported:
    """What a file holds, in our terms."""

    which: Which  # the encoder that encoder.safetensors will be
    architecture: dict[str, Any]
    weights: dict[str, dict[str, Tensor]]  # by part
    account: Account
    about: dict[str, Any] = field(default_factory=dict)
    settings: Settings | None = None  # known where there is a predictor
    slots: dict[str, Tensor] = field(default_factory=dict)  # the optimiser's
    state: dict[str, Any] = field(default_factory=dict)  # of training, where it can go on
    step: int = 0  # how far training came, where it cannot
    metrics: str = ""  # lines, as far as they are known


def convert(
    foreign: Foreign,
    *,
    encoder: Which | None = None,
    method: Method | None = None,
    model: str | None = None,
    image_size: Size | None = None,
    resize: Resize | None = None,
) -> Imported:
    """Recognises the weights and checks every one of them.

    encoder: of a file with two, target by default; of a file with one, what it is.
    method, model: for files that do not tell. image_size: other than trained at; positions are
    then recomputed, or interpolated where they are not sin-cos or `resize` says so.
    """
    account = Account()
    which = account.encoder = _which(foreign, encoder, account)
    if foreign.layout == "flexpredict":
        if image_size is not None:
            raise ValueError("a run goes on at its own image size: leave --image-size out")
        return _own(foreign, which, account)
    part = ENCODERS[which] if ENCODERS[which] in foreign.parts else "encoder"
    shape = Shape.of(foreign, part, model)
    names = names_of(shape.style, shape.depth)
    table = foreign.parts[part][names["pos_embed"][0]]
    grid = grid_of(foreign, shape, table, image_size)
    chosen = {name: foreign.parts[name] for name in ENCODERS.values() if name in foreign.parts}
    made = _meta_encoder(shape, grid, foreign)
    expected = _shapes(made.state_dict())
    weights = {name: take(name, found, names, expected, account) for name, found in chosen.items()}
    imported = Imported(which, dict(made.architecture), weights, account)
    if "predictor" in foreign.parts:
        _take_predictor(foreign, shape, grid, method, imported)
    if image_size is not None:
        _resize(imported, grid, image_size, resize)
    if imported.settings is None and len(weights) == 2:  # no checkpoint to keep the other one in
        for name in [name for name in weights if name != part]:
            del weights[name]
            account.left_out[name] = f"one encoder is kept, and the {which} encoder was asked for"
    _account_for_facts(foreign, account)
    kept = {
        name: value for name, value in foreign.facts.items() if isinstance(value, int | float | str)
    }
    last = _last(foreign.facts)
    imported.metrics = json.dumps(last) + "\n" if last else ""
    imported.step = last.get("step", 0)
    imported.about = {"layout": foreign.layout, "file": foreign.path.name, **kept}
    return imported


def write_run(imported: Imported, out: Path, source: Path) -> None:
    """The run folder: encoder, and where a predictor is known settings and a checkpoint too."""
    with fresh_folder(out) as folder:
        _write(imported, folder, source)


def _write(imported: Imported, out: Path, source: Path) -> None:
    about: dict[str, Any] = {"encoder": imported.which}
    settings = imported.settings
    if settings is not None:
        write_text(out / CONFIG, settings.to_yaml())
        weights, known = {}, set()
        for part, values in imported.weights.items():
            for name, value in values.items():
                # Two encoders may have been stored as one.
                weights[f"{part}.{name}"] = value.clone() if value.data_ptr() in known else value
                known.add(value.data_ptr())
        state = imported.state or {"step": imported.step, "imported": True}
        checkpoint.write(out, state["step"], weights, imported.slots, state)
        about |= {"settings": settings.digest(), "seed": settings.seed}
    about |= {"imported": {"sha256": digest_of(source), **imported.about}}
    if imported.metrics:
        write_text(out / METRICS, imported.metrics)
    part = ENCODERS[imported.which]
    chosen = imported.weights.get(part) or imported.weights["encoder"]
    if not imported.state or imported.about["finished"]:  # else the run still has to go on
        checkpoint.write_weights(out / WEIGHTS, chosen)
    described = {"architecture": imported.architecture, **about}
    write_text(out / DESCRIPTION, json.dumps(described, indent=2) + "\n")


def _which(foreign: Foreign, asked: Which | None, account: Account) -> Which:
    if asked not in (None, *ENCODERS):
        raise ValueError(f"encoder={asked!r}: choose 'target' or 'context'")
    if foreign.layout in ("released", "flexpredict"):
        which: Which = asked or "target"
        settings = _own_facts(foreign).get("settings", {})
        if ENCODERS[which] not in foreign.parts and settings.get("objective") != "mae":
            other = "context" if which == "target" else "target"
            raise ValueError(
                f"{foreign.path} has {', '.join(foreign.parts)} and no {ENCODERS[which]}: "
                f"import its {other} encoder with --encoder {other}"
            )
        return which
    own = foreign.config.get(OWN)
    said = own.get("encoder") if isinstance(own, dict) else None
    if said not in (None, *ENCODERS):
        raise ValueError(f"{foreign.path} calls its encoder {said!r}: say which with --encoder")
    if said is not None and asked not in (None, said):
        raise ValueError(
            f"{foreign.path} says that it holds the {said} encoder: leave --encoder {asked} out"
        )
    if asked is None and said is None:
        account.notes.append(
            "one encoder, taken for the context encoder, which published I-JEPA weights at Hugging "
            "Face and timm are; say --encoder target if it is the other"
        )
    return asked or said or "context"


def _meta_encoder(shape: Shape, grid: tuple[int, int], foreign: Foreign) -> Encoder:
    ratio = SHAPES[shape.model].mlp_ratio if shape.model else shape.hidden / shape.dim
    said = foreign.config.get("pretrained_cfg")  # timm's
    said = said or _own_facts(foreign).get("architecture")
    mean, std = statistics_of(foreign.path, shape.in_channels, said)
    with torch.device("meta"):
        return Encoder(
            dim=shape.dim,
            depth=shape.depth,
            heads=shape.heads,
            mlp_ratio=ratio,
            patch_size=shape.patch_size,
            image_size=(grid[0] * shape.patch_size, grid[1] * shape.patch_size),
            in_channels=shape.in_channels,
            mean=mean,
            std=std,
        )


def _take_predictor(
    foreign: Foreign,
    shape: Shape,
    grid: tuple[int, int],
    method: Method | None,
    imported: Imported,
) -> None:
    account, found = imported.account, foreign.parts["predictor"]
    if len(imported.weights) < 2 or shape.model is None:
        account.left_out["predictor"] = "both encoders and a model of ours are needed to go on"
        return
    method = method or _method(found, account)
    if "predictor_embed.weight" not in found:
        raise ValueError(f"{foreign.path}: its predictor has no predictor_embed.weight")
    depth = len({name.split(".")[1] for name in found if name.startswith("predictor_blocks.")})
    usual, dim = SHAPES[shape.model], found["predictor_embed.weight"].shape[0]
    of_model = f"paper/{method}-vit-{shape.model[4]}"
    alike = [name for name in recipe_names() if name.startswith(of_model)]  # of other patches
    exact = f"{of_model}{shape.patch_size}"
    recipe = exact if exact in alike else next(iter(alike), f"paper/{method}-vit-b16")
    settings = settings_from(
        {
            "model": shape.model,
            "patch_size": shape.patch_size,
            "image_size": (grid[0] * shape.patch_size, grid[1] * shape.patch_size),
            "in_channels": shape.in_channels,
            "predictor_dim": None if dim == usual.predictor_dim else dim,
            "predictor_depth": None if depth == usual.predictor_depth else depth,
            # docs/fidelity.md, 2: as the released weights were trained.
            "form": "released" if method == "stop" else "paper",
        },
        recipe=recipe,
    )
    with torch.device("meta"):
        expected = _shapes(build_objective(settings).predictor.state_dict())
    names: Names = {name: (name,) for name in expected}
    imported.weights["predictor"] = take("predictor", found, names, expected, account)
    imported.settings = settings
    noise = f", noise_std={settings.noise_std:g}, form=released" if method == "stop" else ""
    account.notes.append(
        f"settings are those of recipe {recipe}{noise}: the file does not say them"
    )


def _method(predictor: Mapping[str, Tensor], account: Account) -> Method:
    """The two released codes register the same parameters, in another order (spec 5.2)."""
    order = [name for name in predictor if name in ("mask_token", "predictor_pos_embed")]
    if order == sorted(order, reverse=True):
        method: Method = "stop"
    else:
        method = "ijepa"
    account.notes.append(
        f"a predictor of {'StoP' if method == 'stop' else 'I-JEPA'}, by the order of its keys "
        f"({' before '.join(order)}); --method says otherwise"
    )
    return method


def _resize(
    imported: Imported, old: tuple[int, int], image_size: Size, resize: Resize | None
) -> None:
    """Position tables for another image size."""
    patch = imported.architecture["patch_size"]
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if size[0] % patch or size[1] % patch:
        raise ValueError(
            f"--image-size {size[0]}x{size[1]} does not divide into patches of {patch}: choose "
            f"multiples of {patch}"
        )
    new = (size[0] // patch, size[1] // patch)
    if new == old:
        return
    for part, weights in imported.weights.items():
        name = _TABLES.get(part, "pos_embed")
        table = weights[name]
        computable = is_sincos(table, old)
        if resize == "recompute" and not computable:
            raise ValueError(
                f"{part}: {name} is not sin-cos, so it cannot be computed for another size: "
                f"choose --resize interpolate"
            )
        if computable and resize != "interpolate":
            weights[name] = sincos_positions(*new, table.shape[-1])[None]
        else:
            weights[name] = interpolate_positions(table, old, new)
        how = "recomputed" if computable and resize != "interpolate" else "interpolated"
        imported.account.notes.append(
            f"{part}: {name} {how} from {old[0]}x{old[1]} to {new[0]}x{new[1]}"
        )
    imported.architecture["image_size"] = size
    if imported.settings is not None:
        imported.settings = imported.settings.model_copy(update={"image_size": size})


def _own_facts(foreign: Foreign) -> dict[str, Any]:
    """What our own exports say of themselves."""
    own = foreign.facts.get(OWN, {})
    if not isinstance(own, dict) or not all(
        isinstance(own.get(key, {}), dict) for key in ("settings", "state", "architecture")
    ):
        raise ValueError(f"{foreign.path}: its entry {OWN!r} is not one that an export writes")
    return own


def _own(foreign: Foreign, which: Which, account: Account) -> Imported:
    """A run that was exported whole, which can go on where it was."""
    own = {"finished": True, "state": {}, "metrics": "", **_own_facts(foreign)}
    settings = settings_from(own["settings"], origin=str(foreign.path))
    with torch.device("meta"):
        objective = build_objective(settings)
    weights = {}
    for part, module in objective.named_children():
        if part not in foreign.parts:
            raise ValueError(f"{foreign.path} has {', '.join(foreign.parts)} and no {part}")
        expected = _shapes(module.state_dict())
        names: Names = {name: (name,) for name in expected}
        weights[part] = take(part, foreign.parts[part], names, expected, account)
    slots = foreign.facts.get("opt") or {}
    if not isinstance(slots, dict) or not all(isinstance(x, Tensor) for x in slots.values()):
        raise ValueError(f"{foreign.path}: opt is not the optimiser's state of an export")
    account.notes.append(f"opt: {len(slots)} tensors of the optimiser, used")
    about = {"layout": "flexpredict", "file": foreign.path.name, "finished": own["finished"]}
    architecture = dict(objective.encoders["target"].architecture)
    return Imported(
        which, architecture, weights, account, about, settings, dict(slots), dict(own["state"]),
        metrics=str(own["metrics"]),
    )  # fmt: skip


def _last(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What training logged last; steps are known to the optimiser alone."""
    known = [facts.get(name) for name in ("epoch", "loss")]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in known):
        return {}
    step = max(steps_of(facts.get("opt")), default=0)
    return {"step": step, "epoch": facts["epoch"], "loss": facts["loss"]}


def _account_for_facts(foreign: Foreign, account: Account) -> None:
    for name in foreign.facts:
        if name == OWN:
            continue
        if foreign.layout != "released":
            account.left_out[name] = "beside the weights, and none of them"
        elif name == "opt":
            account.left_out[name] = "its state goes by the order of parameters, which codes change"
        elif name not in _KNOWN_FACTS:
            raise ValueError(
                f"{foreign.path} also holds {name!r}, which no released checkpoint has: expected "
                f"encoder, target_encoder, predictor, opt, {', '.join(sorted(_KNOWN_FACTS))}"
            )
    said = {name: foreign.facts[name] for name in sorted(_KNOWN_FACTS & foreign.facts.keys())}
    if said and foreign.layout == "released":
        text = ", ".join(
            f"{name} {'a state' if isinstance(value, Mapping) else str(value).lower()}"
            for name, value in said.items()
        )
        account.notes.append(f"also in the file: {text}")


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}
