"""Pre-norm transformer blocks, shared by encoder and predictor, and their initialisation."""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

NORM_EPS = 1e-6


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"a width of {dim} does not divide into {heads} attention heads")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, tokens, dim / heads)
        out = F.scaled_dot_product_attention(query, key, value)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, dim))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp = Mlp(dim, round(dim * mlp_ratio))
        self.drop_path = 0.0  # the share of images that skip a branch; fine-tuning sets it

    def forward(self, x: Tensor) -> Tensor:
        rate = self.drop_path if self.training else 0.0
        x = x + drop_path(self.attn(self.norm1(x)), rate)
        return x + drop_path(self.mlp(self.norm2(x)), rate)


def drop_path(branch: Tensor, rate: float) -> Tensor:
    """Leaves out a residual branch for a share of the images, and makes up for it in the others."""
    if not rate:
        return branch  # nothing is drawn: pretraining sees the same random numbers as without it
    kept = torch.rand(len(branch), *[1] * (branch.ndim - 1), device=branch.device) >= rate
    return branch * kept.to(branch.dtype) / (1 - rate)


def set_drop_path(module: nn.Module, rate: float) -> None:
    """From 0 in the first block to `rate` in the last, as is usual; it acts in training mode."""
    if not 0 <= rate < 1:
        raise ValueError(f"drop_path={rate}: expected a share of at least 0 and below 1")
    blocks = [part for part in module.modules() if isinstance(part, Block)]
    for depth, block in enumerate(blocks):
        block.drop_path = rate * depth / max(1, len(blocks) - 1)


def run_blocks(blocks: Iterable[nn.Module], x: Tensor, *, checkpointing: bool = False) -> Tensor:
    """The blocks in turn; with checkpointing, activations are computed again in the backward."""
    for block in blocks:
        if checkpointing and torch.is_grad_enabled():
            x = checkpoint(block, x, use_reentrant=False)
        else:
            x = block(x)
    return x


def init_weights(module: nn.Module, *, depth_scaled: bool = False) -> None:
    """Normal weights of std 0.02, zero biases, unit norms.

    depth_scaled divides the last layer of each residual branch by √(2 · layer), which the released
    code means to do and undoes by drawing every Linear again (docs/fidelity.md, 16).
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm) and part.elementwise_affine:
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
    if depth_scaled:
        blocks = (part for part in module.modules() if isinstance(part, Block))
        with torch.no_grad():
            for layer, block in enumerate(blocks, start=1):
                block.attn.proj.weight.div_(math.sqrt(2 * layer))
                block.mlp.fc2.weight.div_(math.sqrt(2 * layer))
