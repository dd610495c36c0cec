"""minimal_ijepa.py with stochastic positions: four lines differ.

A loss that falls says little about features: flexpredict pretrain has the schedules and gauges.

Run: python examples/minimal_stop.py
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict import EvenMasks, Masks, StochasticPositions, sincos_positions


def vit(dim: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def pick(tokens: Tensor, places: Tensor) -> Tensor:
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[-1]))


class IJepa(nn.Module):
    def __init__(self, pixels: int, grid: tuple[int, int], dim: int = 64, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"embed": nn.Linear(pixels, dim), "blocks": vit(dim, 3)})
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.projection, self.mask_token = nn.Linear(dim, width), nn.Parameter(torch.zeros(width))
        self.stop = StochasticPositions(dim, width, noise_std=0.25)
        self.predictor, self.head = vit(width, 2), nn.Linear(width, dim)
        self.register_buffer("seen_at", sincos_positions(*grid, dim)[None])
        self.register_buffer("asked_at", sincos_positions(*grid, width)[None])

    def forward(self, patches: Tensor, masks: Masks) -> Tensor:
        places, count = masks.targets.flatten(1), len(patches)
        with torch.no_grad():
            truth = self.target["blocks"](self.target["embed"](patches) + self.seen_at)
            truth = pick(F.layer_norm(truth, truth.shape[-1:]), places)
        tokens = pick(self.encoder["embed"](patches) + self.seen_at, masks.context)
        features = self.encoder["blocks"](tokens)
        table = self.asked_at.expand(count, -1, -1)
        context = self.stop.context(features, pick(table, masks.context), self.projection)
        masked = self.stop.masked(pick(table, places), self.projection, self.mask_token)
        predicted = self.predictor(torch.cat([context, masked], 1))[:, -places.shape[1] :]
        return F.smooth_l1_loss(self.head(predicted), truth)


def train(patches: Tensor, grid: tuple[int, int], steps: int = 200) -> tuple[IJepa, list[float]]:
    """patches (images, N, pixels), normalised."""
    model, sampler, losses = IJepa(patches.shape[-1], grid), EvenMasks(grid), []
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    draws = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = patches[torch.randint(len(patches), (32,), generator=draws)]
        loss = model(batch, sampler.sample(32, draws))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_([*model.target.parameters()], [*model.encoder.parameters()], 0.02)
        losses.append(loss.item())
    return model, losses


if __name__ == "__main__":
    from flexpredict.data.sources import open_source

    scenes = open_source("scenes:512", image_size=64)
    images = torch.stack([torch.tensor(scenes.read(index)) for index in range(len(scenes))])
    rows = images.float().div(64).sub(2).unfold(1, 8, 8).unfold(2, 8, 8).flatten(1, 2).flatten(2)
    print("losses:", *(f"{value:.3f}" for value in train(rows, (8, 8))[1][::20]))
