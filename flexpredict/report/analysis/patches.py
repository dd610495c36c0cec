"""What patches say of each other: predicted heat maps (Figure 6), principal colours, attention."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flexpredict.model.blocks import Block
from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.model.masking import Grid, Masks
from flexpredict.model.vit import Encoder
from flexpredict.objective.ijepa import IJepa
from flexpredict.report.analysis.grid import distances, neighbours


def heat_map(predicted: Tensor, tokens: Tensor, place: int, temperature: float) -> Tensor:
    """Softmax of the cosines between a prediction for `place` and all other tokens.

    (…, D) and (N, D) -> (…, N), zero at the place itself.
    """
    cosines = F.normalize(predicted, dim=-1) @ F.normalize(tokens, dim=-1).T
    itself = torch.arange(len(tokens), device=tokens.device) == place
    return cosines.masked_fill(itself, -torch.inf).div(temperature).softmax(-1)


def neighbourhood_mass(maps: Tensor, place: int, grid: Grid) -> Tensor:
    """The share of a map within the 8 patches around the place, (…, N) -> (…)."""
    return (maps * neighbours(grid)[place].to(maps)).sum(-1)


def mean_distance(maps: Tensor, place: int, grid: Grid) -> Tensor:
    """The mean distance from the place, weighted by the map, in patches, (…, N) -> (…)."""
    return (maps * distances(grid)[place].to(maps)).sum(-1)


@dataclass(frozen=True, slots=True)
class Locality:
    """How near to its place a prediction looks: means over draws, images and places."""

    neighbourhood_mass: float  # share
    mean_distance: float  # patches
    even_neighbourhood_mass: float  # of maps that are the same everywhere
    even_mean_distance: float


def locality(
    predicted: Tensor, tokens: Tensor, places: Tensor, grid: Grid, temperature: float
) -> Locality:
    """predicted (draws, B, T, D), tokens (B, N, D), places (B, T)"""
    found = []
    for image, row in enumerate(places.tolist()):
        for target, place in enumerate(row):
            maps = heat_map(predicted[:, image, target], tokens[image], place, temperature).mean(0)
            even = torch.full_like(maps, 1 / (len(maps) - 1)).index_fill(
                0, torch.tensor(place, device=maps.device), 0.0
            )
            both = torch.stack([maps, even])
            found.append(
                torch.stack(
                    [neighbourhood_mass(both, place, grid), mean_distance(both, place, grid)]
                )
            )
    (mass, even_mass), (distance, even_distance) = torch.stack(found).mean(0).tolist()
    return Locality(mass, distance, even_mass, even_distance)


@torch.no_grad()
def predictions(objective: IJepa, images: Tensor, masks: Masks, draws: int) -> Tensor:
    """What is predicted for the first target block, again and again, (draws, B, T, D)."""
    first = Masks(masks.context, masks.targets[:, :1])
    features = objective.encoder(images, masks.context)
    found = []
    for draw in range(draws):
        generator = torch.Generator(images.device).manual_seed(draw)
        part = ChunkPart(generator, len(images), 0, len(images))
        found.append(objective.predictor(features, first, Draws([part]))[:, 0])
    return torch.stack(found)


def principal_colours(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The first three principal components as colours, and their shares of the variance.

    (n, N, D) -> (n, N, 3) from 0 to 1, and (3,). All tokens have their axes in common; a hundredth
    at either end is cut off. Each axis points to where its largest weight is positive.
    """
    flat = tokens.flatten(0, 1).double()
    flat = flat - flat.mean(0)
    _, values, axes = torch.linalg.svd(flat, full_matrices=False)
    axes = axes[:3] * axes[:3].gather(1, axes[:3].abs().argmax(1, keepdim=True)).sign()
    scores = flat @ axes.T
    low, high = scores.quantile(0.01, dim=0), scores.quantile(0.99, dim=0)
    colours = ((scores - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    variances = values.square()
    return colours.view(*tokens.shape[:2], 3), variances[:3] / variances.sum()


@torch.no_grad()
def attention(encoder: Encoder, images: Tensor) -> Tensor:
    """Attention of the last block, (B, heads, N, N): row q is what patch q looks at."""
    x = encoder.embed(images)
    for block in encoder.blocks[:-1]:
        x = block(x)
    last = encoder.blocks[-1]
    assert isinstance(last, Block)
    heads = last.attn.heads
    qkv = last.attn.qkv(last.norm1(x)).unflatten(-1, (3, heads, -1))
    query, key, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)


def attention_distance(weights: Tensor, grid: Grid) -> Tensor:
    """How far each head looks on average, in patches, (B, heads, N, N) -> (heads,)."""
    return (weights * distances(grid).to(weights)).sum(-1).mean((0, 2))
