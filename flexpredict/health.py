"""Gauges of a run: pure functions of tensors. They need no labels."""

import torch
from torch import Tensor

from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder


@torch.no_grad()
def projection_gauges(predictor: Predictor, encoder: Encoder) -> dict[str, Tensor]:
    """How large A, b, m̃ and the encoder's last scale γ are: what StoP's noise acts on."""
    projection = predictor.predictor_embed
    noise = predictor.positions.noise_projection
    gauges = {
        "norm_A": projection.weight.norm(),
        "l1_A": projection.weight.abs().sum(),
        "norm_b": projection.bias.norm(),
        "norm_mask_token": predictor.mask_token.norm(),
        "norm_gamma": encoder.norm.weight.norm(),
    }
    if noise is not None:
        gauges["norm_noise_projection"] = noise.weight.norm()
    return gauges
