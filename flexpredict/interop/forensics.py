"""What a released checkpoint tells about its training, without loading it into a model.

Item numbers are those of docs/fidelity.md, where the paper and its released code differ.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flexpredict.health.gauges import effective_rank
from flexpredict.interop.files import Foreign, steps_of
from flexpredict.model.vit import sincos_grid

_INIT = 0.02  # the standard deviation of weights before training
_IMAGENET = 1_281_167


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    value: Any  # a number, a text, or a list of them
    says: str = ""


def inspect_weights(foreign: Foreign) -> list[Finding]:
    """Facts in the order of interest, each with what it says about the open questions."""
    parts = foreign.parts
    ours = foreign.layout == "flexpredict"
    found = [
        Finding("layout", foreign.layout),
        *(Finding(f"keys of {part}", len(weights)) for part, weights in parts.items()),
    ]
    weights = parts.get("target_encoder") or parts["encoder"]
    found += _batch(foreign.facts)
    found += _patch(weights)
    predictor = parts.get("predictor", {})
    if "mask_token" in predictor:
        found += _mask_token(predictor["mask_token"].float())
        found += [] if ours else _order(predictor)
    if isinstance(foreign.facts.get("opt"), dict) and not ours:
        found += _optimiser(foreign)
    if "predictor_embed.weight" in predictor:
        found += _projection(predictor, parts.get("encoder", {}))
    if {"encoder", "target_encoder"} <= parts.keys():
        found += _distance(parts["encoder"], parts["target_encoder"])
    if ours:  # the questions are about released files; of ours the settings are known
        return [
            Finding(one.what, one.value, "" if one.says.startswith("item") else one.says)
            for one in found
        ]
    return found


def _batch(facts: dict[str, Any]) -> list[Finding]:
    found = []
    world, batch = facts.get("world_size"), facts.get("batch_size")
    if isinstance(world, int):
        alone = "item 11 held: every process took itself for the only one, all saw the same images"
        if isinstance(batch, int) and world == 1:
            alone += f", and the batch was {batch}, whatever the number of GPUs"
        many = f"item 11 did not hold: {world} processes, so the batch was {world} × batch_size"
        found.append(Finding("world_size", world, alone if world == 1 else many))
    if batch is not None:
        found.append(Finding("batch_size", batch, "images of one process"))
    if facts.get("epoch") is not None:
        found.append(Finding("epoch", facts["epoch"], "file names are one ahead of this number"))
    if isinstance(facts.get("lr"), int | float):
        found.append(Finding("lr", facts["lr"], _rate(facts["lr"])))
    if facts.get("scaler") is not None:
        found.append(Finding("scaler", "present", "item 10: trained in mixed precision"))
    return found


def _rate(rate: float) -> str:
    if math.isclose(rate, 8.941956e-5, rel_tol=1e-3):
        return "item 14: the value at which StoP's H schedule is frozen"
    if math.isclose(rate, 1e-4, rel_tol=1e-3):
        return "item 12: the end of StoP's B and L schedules; or the field holds the start"
    return ""


def _patch(weights: dict[str, Tensor]) -> list[Finding]:
    projection, table = weights.get("patch_embed.proj.weight"), weights.get("pos_embed")
    found = []
    if projection is not None:
        says = ""
        if projection.shape[0] == 1280:
            says = f"item 7: this ViT-H has patches of {projection.shape[-1]}"
        found.append(Finding("patch embedding", list(projection.shape), says))
    if table is not None:
        grid = sincos_grid(table)
        fixed = f"sin-cos of {grid[0]}x{grid[1]}, so any size can be recomputed" if grid else ""
        says = fixed or "not sin-cos: learned"
        found.append(Finding("positions", list(table.shape), says))
    return found


def _mask_token(token: Tensor) -> list[Finding]:
    norm, start = float(token.norm()), _INIT * math.sqrt(token.numel())
    untouched = abs(norm - start) < 3 * _INIT / math.sqrt(2)  # the deviation of such a norm
    says = (
        f"item 2: as at initialisation ({start:.2f}), so it seems never to have been trained: the "
        f"masked token is ψ + A n + b, form=released"
        if untouched
        else f"item 2: away from its initialisation ({start:.2f}), so it was trained"
    )
    return [Finding("norm of mask_token", norm, says)]


def _order(predictor: dict[str, Tensor]) -> list[Finding]:
    order = [name for name in predictor if name in ("mask_token", "predictor_pos_embed")]
    code = "StoP's" if order[0] == "predictor_pos_embed" else "I-JEPA's"
    return [Finding("order of keys", " before ".join(order), f"as {code} code registers them")]


def _optimiser(foreign: Foreign) -> list[Finding]:
    state = foreign.facts["opt"].get("state")
    if not isinstance(state, dict):
        return []
    trained = sum(len(foreign.parts.get(part, {})) for part in ("encoder", "predictor"))
    bare = trained - len(state)
    says = {
        2: "all but the two position tables, so mask_token was trained (item 2)",
        3: "the two position tables and one more: mask_token, if item 2 holds",
    }.get(bare, "")
    found = [Finding("parameters without optimiser state", bare, says)]
    if steps := steps_of(foreign.facts["opt"]):
        done, epochs = max(steps), foreign.facts.get("epoch")
        says = ""
        if isinstance(epochs, int) and epochs > 0:
            batch = _IMAGENET * epochs / max(done, 1)
            says = (
                f"item 11: {done / epochs:,.0f} steps an epoch; on ImageNet-1k that is a batch of "
                f"about {batch:,.0f} (625 means 2048, 20,018 means 64)"
            )
        found.append(Finding("optimiser steps", done, says))
    return found


def _projection(predictor: dict[str, Tensor], encoder: dict[str, Tensor]) -> list[Finding]:
    a = predictor["predictor_embed.weight"].double()
    norm, start = float(a.norm()), _INIT * math.sqrt(a.numel())
    values = torch.linalg.eigvalsh(a @ a.T).flip(0).clamp_min(0)
    rank = effective_rank(values)
    full = int((values > values[0] * 1e-10).sum())
    deciles = [float(values[round(q * (len(values) - 1) / 10)]) for q in range(11)]
    noise = 0.25 * norm / math.sqrt(len(a) / 2)
    found = [
        Finding("norm of A", norm, f"{norm / start:.2f} times an untrained one ({start:.2f})"),
        Finding("eigenvalues of A Aᵀ", deciles, "from the largest to the smallest, in tenths"),
        Finding(
            "effective rank of A Aᵀ", rank,
            f"of {len(values)}; {full} eigenvalues are not zero, so A Aᵀ is "
            f"{'of full rank' if full == len(values) else 'of low rank'}",
        ),
        Finding(
            "norm of A n over norm of ψ", noise,
            "at noise_std 0.25 (item 1); 0.2 in an untrained ViT-B. At 0.8 one position "
            "in fifteen is nearest to another than its own, at 1.6 half of them",
        ),
    ]  # fmt: skip
    if "predictor_embed.bias" in predictor:
        bias = float(predictor["predictor_embed.bias"].float().norm())
        found.append(Finding("norm of b", bias, "item 4: the bias is there; item 2: it may be m̃"))
    if "norm.weight" in encoder:
        gamma = encoder["norm.weight"].float()
        relative = float(gamma.norm()) / math.sqrt(len(gamma))
        says = "of the encoder's last norm, 1 at initialisation: above it, A may shrink unpunished"
        found.append(Finding("rms of γ", relative, says))
    return found


def _distance(context: dict[str, Tensor], target: dict[str, Tensor]) -> list[Finding]:
    names = [
        name
        for name, value in context.items()
        if "pos_embed" not in name and name in target and target[name].shape == value.shape
    ]
    apart = sum(float((context[x].float() - target[x].float()).square().sum()) for x in names)
    size = sum(float(target[x].float().square().sum()) for x in names)
    says = "0 would mean one encoder stored twice; near the end of training they are close"
    if size == 0:
        return []
    return [Finding("distance of the two encoders", math.sqrt(apart / size), says)]
