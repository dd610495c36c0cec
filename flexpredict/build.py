"""Settings in, modules out: the only place where settings meet model and data."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flexpredict.config import Settings, read_settings
from flexpredict.data.loader import Batches, Beside, Order
from flexpredict.data.random import Stream, seed_from
from flexpredict.data.sources import Source
from flexpredict.engine import checkpoint
from flexpredict.engine.encoders import DESCRIPTION, Which, load_encoder
from flexpredict.engine.estimate import Lengths, Workload, workload
from flexpredict.engine.optim import Schedule
from flexpredict.model.covariances import Covariance
from flexpredict.model.masking import Blocks, EvenMasks, Grid, MaskSampler, PaperMasks, RandomMasks
from flexpredict.model.positions import StochasticPositions
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    SHAPES,
    Encoder,
    create_encoder,
    is_sincos,
    shape_of,
)
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.lowres import whole_cells
from flexpredict.objective.mae import Mae
from flexpredict.run_folder import CONFIG

_CHUNKS = 64  # whose masks are drawn to learn their lengths, where these vary
_PREDICTOR = ("predictor_dim", "predictor_depth", "predictor_heads")
_LOOKED_AT = 64  # images whose masks are drawn to see whether they hold what is asked for


def image_size(settings: Settings) -> tuple[int, int]:
    """Height and width."""
    size = settings.image_size
    return (size, size) if isinstance(size, int) else size


def build_encoder(settings: Settings) -> Encoder:
    encoder = create_encoder(
        settings.model,
        patch_size=settings.patch_size,
        image_size=settings.image_size,
        in_channels=settings.in_channels,
        mean=settings.mean,
        std=settings.std,
        depth_scaled_init=settings.depth_scaled_init,
    )
    _initialise(encoder, settings.seed, Stream.ENCODER)
    return encoder


def build_objective(settings: Settings) -> IJepa | Mae:
    """The objective with its encoder and predictor, initialised from the seed.

    Variants that share a seed share all the weights they have in common.
    """
    shape, encoder = shape_of(settings.model), build_encoder(settings)
    dim = settings.predictor_dim or shape.predictor_dim
    positions = StochasticPositions(
        encoder.dim,
        dim,
        settings.noise_std if settings.stochastic else 0.0,
        noise_on=settings.noise_on,
        tied=settings.tied,
        covariance=_covariance(settings),
        noise_rank=settings.noise_rank,
        noise_std_final=settings.noise_std_final,
        form=settings.form,
        norm=settings.projection_norm,
        dropout=settings.projection_dropout,
        l1=settings.projection_l1,
        l2=settings.projection_l2,
    )
    pixels = settings.in_channels * settings.patch_size**2
    predictor = Predictor(
        encoder_dim=encoder.dim,
        output_dim=encoder.dim if settings.objective == "ijepa" else pixels,
        dim=dim,
        depth=settings.predictor_depth or shape.predictor_depth,
        heads=settings.predictor_heads or shape.heads,
        grid=encoder.grid,
        positions=positions,
        learned=settings.positions == "learned",
        depth_scaled_init=settings.depth_scaled_init,
    )
    _initialise(predictor, settings.seed, Stream.PREDICTOR)
    if settings.grad_checkpointing:
        encoder.set_grad_checkpointing()
        predictor.set_grad_checkpointing()
    if settings.objective == "mae":
        return Mae(encoder, predictor)
    return IJepa(
        encoder,
        predictor,
        loss=settings.loss,
        target_layers=settings.target_layers,
        low_resolution=settings.low_resolution,
    )


def _covariance(settings: Settings) -> Covariance:
    match settings.positions:
        case "sincos" | "learned" | "stop":
            return "projected"
        case beyond:
            return beyond


def architecture_of(run: Path) -> dict[str, Any]:
    """The settings by which a model like that of a run is made, as far as its folder tells."""
    try:
        known = json.loads((run / DESCRIPTION).read_text("utf-8"))["architecture"]
        shape = tuple(known[name] for name in ("dim", "depth", "heads", "mlp_ratio"))
        model = next(name for name, one in SHAPES.items() if one[:4] == shape)
        (height, width), patch = known["image_size"], known["patch_size"]
        statistics = {name: tuple(known[name]) for name in ("mean", "std")}
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return {}  # who loads its weights says what is wrong
    found = {
        "model": model, "patch_size": patch, "in_channels": known["in_channels"],
        "image_size": height if height == width else (height, width),
    }  # fmt: skip
    if statistics != {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}:  # which need not be said
        found |= statistics
    if (run / CONFIG).is_file():
        before = read_settings(run / CONFIG)
        found |= {name: getattr(before, name) for name in _PREDICTOR}
    return found


def start_from(objective: IJepa | Mae, settings: Settings, run: Path) -> str:
    """Gives an objective the weights of a run as its first ones; says which these are.

    A run with one encoder gives it to both. Tables of sin-cos positions stay those of this size.
    """
    if not (run / DESCRIPTION).is_file():
        raise ValueError(f"init={run} is no run: expected a folder with {DESCRIPTION}")
    newest = checkpoint.newest(run)
    if newest is None:
        which: Which = json.loads((run / DESCRIPTION).read_text("utf-8")).get("encoder", "target")
        one = load_encoder(run, which).state_dict()
        stored = {f"encoder.{name}": value for name, value in one.items()}
    else:
        stored = checkpoint.read_weights(newest / checkpoint.MODEL)
    used = []
    for part, module in objective.named_children():
        if part == "predictor" and not settings.init_predictor:
            continue
        has = any(name.startswith(f"{part}.") for name in stored)
        source = "encoder" if part == "target_encoder" and not has else part
        weights = {
            name.removeprefix(f"{source}."): value
            for name, value in stored.items()
            if name.startswith(f"{source}.")
        }
        if weights:
            _load_first(module, weights, _grid_of(run), f"init={run}: its {source}")
            used.append(part)
    new = _trained_as(settings, run) if "predictor" in used else "; the predictor is new"
    return f"first weights are those of {run}: {', '.join(used)}{new}"


def _trained_as(settings: Settings, run: Path) -> str:
    """How a run's predictor was trained, where it is to go on otherwise."""
    if not (run / CONFIG).is_file():
        return ""
    before = read_settings(run / CONFIG)
    if before.stochastic and settings.stochastic and before.form != settings.form:
        raise ValueError(
            f"the predictor of init={run} was trained with form={before.form}, not "
            f"{settings.form}: set form={before.form}, or init_predictor=false for a new one"
        )
    names = ("positions", "noise_std", "tied") if before.stochastic else ("positions",)
    other = [n for n in names if getattr(before, n) != getattr(settings, n)]
    told = ", ".join(f"{name}={getattr(before, name)}" for name in other)
    return f"; the predictor was trained with {told}" if told else ""


def _grid_of(run: Path) -> Grid:
    known = json.loads((run / DESCRIPTION).read_text("utf-8"))["architecture"]
    height, width = known["image_size"]
    return height // known["patch_size"], width // known["patch_size"]


def _load_first(module: nn.Module, weights: dict[str, Tensor], grid: Grid, origin: str) -> None:
    """grid: of the run that the weights are from."""
    mine = module.state_dict()
    same = isinstance(module, Encoder | Predictor) and module.grid == grid
    advice = "choose the same model, patch_size and in_channels"
    if isinstance(module, Predictor):
        advice = "choose the same predictor, or a new one by init_predictor=false"
    for name, value in weights.items():
        table = name.endswith("pos_embed")
        if name not in mine or (mine[name].shape == value.shape and (same or not table)):
            continue
        if table and value.shape[1] == math.prod(grid) and is_sincos(value, grid):
            weights[name] = mine[name]
        elif mine[name].shape == value.shape:
            raise ValueError(
                f"{origin} has learned positions of a {grid[0]}×{grid[1]} grid, not of this one: "
                f"choose an image_size of the same proportions"
            )
        else:
            raise ValueError(
                f"{origin} has {name} of {tuple(value.shape)}, not {tuple(mine[name].shape)}: "
                f"{advice}"
            )
    if odd := sorted(mine.keys() ^ weights.keys()):
        raise ValueError(f"{origin} does not fit, {odd[0]} is only on one side: {advice}")
    module.load_state_dict(weights)


def build_sampler(settings: Settings, grid: Grid) -> MaskSampler:
    if settings.masking == "random":
        return RandomMasks(grid, mask_ratio=settings.mask_ratio)
    blocks: Blocks = {
        "target_blocks": settings.target_blocks,
        "target_scale": settings.target_scale,
        "target_aspect": settings.target_aspect,
        "context_scale": settings.context_scale,
    }
    sampler: MaskSampler
    if settings.masking == "paper":
        sampler = PaperMasks(grid, min_context=settings.min_context, **blocks)
    else:
        sampler = EvenMasks(grid, **blocks)
    if settings.low_resolution is not None:
        some = sampler.sample(_LOOKED_AT, torch.Generator().manual_seed(0))
        if not whole_cells(some, grid).any():
            raise ValueError(
                f"low_resolution={settings.low_resolution} has nothing to reduce: no target block "
                f"holds 2×2 whole patches on a {grid[0]}×{grid[1]} grid with {settings.masking} "
                f"masks; use smaller patches, larger target_scale or masking=paper"
            )
    return sampler


def build_batches(
    settings: Settings,
    source: Source,
    rank: int = 0,
    world: int = 1,
    *,
    beside: Beside | None = None,
) -> Batches:
    return Batches(
        source,
        Order(len(source), settings.batch_size, settings.seed),
        image_size=image_size(settings),
        channels=settings.in_channels,
        crop_scale=settings.crop_scale,
        rank=rank,
        world=world,
        beside=beside,
    )


def build_schedule(settings: Settings, steps_per_epoch: int) -> Schedule:
    """Lengths in steps; learning rates and EMA scaled to the batch where a reference is set."""
    if settings.steps is not None:
        steps = settings.steps
    else:
        assert settings.epochs is not None
        steps = max(1, round(settings.epochs * steps_per_epoch))
    ratio = settings.batch_ratio
    return Schedule(
        steps=steps,
        warmup_steps=round(settings.warmup * steps),
        freeze_step=round(settings.freeze_after * steps),
        lr_start=settings.lr_start * ratio,
        lr=settings.lr * ratio,
        lr_final=settings.lr_final * ratio,
        weight_decay_start=settings.weight_decay,
        weight_decay_final=settings.weight_decay_final,
        ema_start=settings.ema**ratio,
        ema_final=settings.ema_final**ratio,
    )


def build_workload(
    settings: Settings, objective: IJepa | Mae | None = None, sampler: MaskSampler | None = None
) -> Workload:
    """What a step of these settings has to compute and to hold; no weights are made for it."""
    if objective is None:
        with torch.device("meta"):
            objective = build_objective(settings)
    sampler = sampler or build_sampler(settings, objective.encoder.grid)
    generator = torch.Generator().manual_seed(settings.seed)
    varied = isinstance(sampler, PaperMasks)
    masks = [
        sampler.sample(settings.chunk_size if varied else 1, generator)
        for _ in range(_CHUNKS if varied else 1)
    ]
    alike = not varied or settings.batch_size // settings.accumulate <= settings.chunk_size
    target = objective.target_encoder if isinstance(objective, IJepa) else None
    return workload(
        objective.encoder,
        objective.predictor,
        blocks=masks[0].targets.shape[1],
        lengths=[Lengths(one.context.shape[1], one.targets.shape[2]) for one in masks],
        chunk_size=settings.chunk_size,
        followed=sum(p.numel() for p in target.parameters()) if target is not None else 0,
        # See IJepa.forward.
        asked_only=alike and settings.target_layers == 1 and settings.low_resolution is None,
    )


def _initialise(module: Encoder | Predictor, seed: int, stream: Stream) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from(seed, stream))
        module.init_weights()
