"""Pre-norm transformer blocks, shared by encoder and predictor, and their initialisation."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flexpredict.model import fused, short_attention

NORM_EPS = 1e-6

# Which tokens are asked for: all, the last so many, or those at indices (B, S).
Places = Tensor | int | None


def gather(tokens: Tensor, index: Tensor) -> Tensor:
    """Tokens at the given places: (B, N, D) and (B, …) -> (B, …, D)."""
    flat = index.flatten(1)
    picked = tokens.gather(1, flat[..., None].expand(-1, -1, tokens.shape[-1]))
    return picked.view(*index.shape, tokens.shape[-1])


def pick(tokens: Tensor, places: Places) -> Tensor:
    if places is None:
        return tokens
    return tokens[:, -places:] if isinstance(places, int) else gather(tokens, places)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"a width of {dim} does not divide into {heads} attention heads")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, places: Places = None) -> Tensor:
        return self.proj(self.mix(x, places))

    def mix(self, x: Tensor, places: Places = None) -> Tensor:
        """What is attended to, before the last projection."""
        dim = x.shape[-1]
        if places is None:
            if short_attention.usable(x, self.heads):
                return self._mix_few(x)
            query, key, value = self._heads(self.qkv(x), 3)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            (query,) = self._heads(F.linear(pick(x, places), weight[:dim], bias[:dim]), 1)
            key, value = self._heads(F.linear(x, weight[dim:], bias[dim:]), 2)
        out = F.scaled_dot_product_attention(query, key, value)
        return out.transpose(1, 2).flatten(2)

    def _mix_few(self, x: Tensor) -> Tensor:
        bias = self.qkv.bias
        if type(self.qkv) is not nn.Linear or not bias.requires_grad:
            return short_attention.short_attention(self.qkv(x), self.heads)
        qkv = F.linear(x, self.qkv.weight, bias.detach())
        return short_attention.short_attention(qkv, self.heads, bias)

    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, tokens, parts · dim) -> `parts` of (B, heads, tokens, dim / heads)"""
        return x.unflatten(-1, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


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

    def forward(self, x: Tensor, places: Places = None) -> Tensor:
        """All tokens, or those at some places only, which still see all others."""
        return added(*self.part(x, places=places))

    def part(
        self,
        x: Tensor,
        branch: Tensor | None = None,
        bias: Tensor | None = None,
        places: Places = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same, given and giving the residual stream and what is still to be added to it.

        The next block adds it on its way to the norm, which saves a round trip through memory.
        """
        rate = self.drop_path if self.training else 0.0
        if rate or not fused.usable(x) or type(self.mlp.fc1) is not nn.Linear:
            x = added(x, branch, bias)
            x = pick(x, places) + drop_path(self.attn(self.norm1(x), places), rate)
            return x, drop_path(self.mlp(self.norm2(x)), rate), None
        if branch is None:
            normed = self.norm1(x)
        else:
            x, normed = fused.add_norm(x, branch, bias, self.norm1)
        proj, fc1, fc2 = self.attn.proj, self.mlp.fc1, self.mlp.fc2
        branch = F.linear(self.attn.mix(normed, places), proj.weight)
        x, normed = fused.add_norm(pick(x, places), branch, proj.bias, self.norm2)
        if torch.is_grad_enabled():
            hidden = fused.bias_gelu(F.linear(normed, fc1.weight), fc1.bias)
        else:  # added within the product, as others do: see docs/performance.md for what it changes
            hidden = fused.gelu(fc1(normed))
        return x, F.linear(hidden, fc2.weight), fc2.bias


def added(x: Tensor, branch: Tensor | None, bias: Tensor | None) -> Tensor:
    """A residual stream with what was still to be added to it."""
    if branch is None:
        return x
    return x + branch if bias is None else x + (branch + bias)


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


def run_blocks(
    blocks: Sequence[nn.Module] | nn.ModuleList,
    x: Tensor,
    places: Places = None,
    *,
    checkpointing: bool = False,
) -> Tensor:
    """The blocks in turn; the last one is computed only for the tokens that are asked for.

    With checkpointing, activations are computed again in the backward.
    """
    branch, bias = None, None
    for depth, block in enumerate(blocks, start=1):
        assert isinstance(block, Block)
        asked = places if depth == len(blocks) else None
        if checkpointing and torch.is_grad_enabled():
            x, branch, bias = checkpoint(block.part, x, branch, bias, asked, use_reentrant=False)
        else:
            x, branch, bias = block.part(x, branch, bias, asked)
    return added(x, branch, bias)


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
