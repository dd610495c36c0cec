"""Attention over sequences so short that all keys fit into one tile, as Triton kernels for GPUs.

Kernels for long sequences walk over keys in tiles and keep their sums straight; a ViT's sequences
of some dozens of patches need none of that. Here one program sees all keys of a head at once, reads
queries, keys and values from where the projection left them, and writes all gradients to where the
projection expects them: nothing is transposed, stacked or copied. On an H200 that is several times
the speed of the library kernels at these lengths (docs/performance.md). `usable` says where it
works; elsewhere `scaled_dot_product_attention` does.
"""

from typing import Any

import torch
from torch import Tensor

try:  # comes with torch's GPU builds
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_LONGEST = 128  # tokens: with more, library kernels are faster
_WIDEST = 128  # of a head
_LOG2_E = 1.4426950408889634


def usable(qkv: Tensor, heads: int) -> bool:
    """Whether a projected batch, (B, N, 3 · dim), can be attended to here."""
    if triton is None or not qkv.is_cuda or qkv.dtype not in (torch.bfloat16, torch.float16):
        return False
    return qkv.shape[1] <= _LONGEST and qkv.shape[2] // 3 // heads <= _WIDEST


def _room(count: int, least: int) -> int:
    """The power of two that holds so many."""
    return max(least, 1 << (count - 1).bit_length())


if triton is not None:

    @triton.jit
    def _forward(
        qkv, out, lse, tokens, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr,
        ROWS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        head, image = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        key = tl.arange(0, KEYS)
        place = tl.arange(0, WIDE)
        step = 3 * HEADS * WIDTH
        start = qkv + image.to(tl.int64) * tokens * step + head * WIDTH
        inside, known = place < WIDTH, key < tokens
        asked = (row[:, None] < tokens) & inside[None, :]
        there = known[:, None] & inside[None, :]
        q = tl.load(start + row[:, None] * step + place[None, :], mask=asked, other=0.0)
        at = start + key[:, None] * step + place[None, :]
        k = tl.load(at + HEADS * WIDTH, mask=there, other=0.0)
        v = tl.load(at + 2 * HEADS * WIDTH, mask=there, other=0.0)
        score = tl.dot(q, tl.trans(k)) * scale
        score = tl.where(known[None, :], score, float("-inf"))
        highest = tl.max(score, 1)
        weight = tl.exp2(score - highest[:, None])
        total = tl.sum(weight, 1)
        mixed = tl.dot(weight.to(v.dtype), v) / total[:, None]
        to = out + image.to(tl.int64) * tokens * HEADS * WIDTH + head * WIDTH
        to = to + row[:, None] * (HEADS * WIDTH) + place[None, :]
        tl.store(to, mixed.to(v.dtype), mask=asked)
        tl.store(lse + tl.program_id(0) * tokens + row, highest + tl.log2(total), mask=row < tokens)

    @triton.jit
    def _backward(
        qkv, out, lse, gradient, to, tokens, scale, exponent_scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        head, image = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
        key = tl.arange(0, KEYS)
        place = tl.arange(0, WIDE)
        dim = HEADS * WIDTH
        known = key < tokens
        there = known[:, None] & (place < WIDTH)[None, :]
        inner = image.to(tl.int64) * tokens * 3 * dim + head * WIDTH
        at = inner + key[:, None] * (3 * dim) + place[None, :]
        q = tl.load(qkv + at, mask=there, other=0.0)
        k = tl.load(qkv + at + dim, mask=there, other=0.0)
        v = tl.load(qkv + at + 2 * dim, mask=there, other=0.0)
        outer = image.to(tl.int64) * tokens * dim + head * WIDTH
        outer = outer + key[:, None] * dim + place[None, :]
        g = tl.load(gradient + outer, mask=there, other=0.0)
        o = tl.load(out + outer, mask=there, other=0.0)
        norm = tl.load(lse + tl.program_id(0) * tokens + key, mask=known, other=0.0)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        score = tl.dot(q, tl.trans(k)) * exponent_scale
        weight = tl.exp2(score - norm[:, None])
        weight = tl.where(known[None, :] & known[:, None], weight, 0.0)
        tl.store(to + at + 2 * dim, tl.dot(tl.trans(weight.to(g.dtype)), g).to(g.dtype), mask=there)
        slope = weight * (tl.dot(g, tl.trans(v)) - delta[:, None]) * scale
        slope = slope.to(g.dtype)
        tl.store(to + at, tl.dot(slope, k).to(g.dtype), mask=there)
        tl.store(to + at + dim, tl.dot(tl.trans(slope), q).to(g.dtype), mask=there)


@torch.library.custom_op("flexpredict::short_attention", mutates_args=())
def _attention(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, three = qkv.shape
    dim = three // 3
    width = dim // heads
    qkv = qkv.contiguous()
    out = qkv.new_empty(batch, tokens, dim)
    lse = qkv.new_empty(batch * heads, tokens, dtype=torch.float32)
    keys = _room(tokens, 16)
    rows = min(keys, 64)
    _forward[(batch * heads, -(-tokens // rows))](
        qkv, out, lse, tokens, width**-0.5 * _LOG2_E,
        HEADS=heads, WIDTH=width, ROWS=rows, KEYS=keys, WIDE=_room(width, 16),
        num_warps=8 if rows * keys > 64 * 128 else 4,
    )  # fmt: skip
    return out, lse


@_attention.register_fake
def _(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, three = qkv.shape
    out = qkv.new_empty(batch, tokens, three // 3)
    return out, qkv.new_empty(batch * heads, tokens, dtype=torch.float32)


@torch.library.custom_op("flexpredict::short_attention_backward", mutates_args=())
def _gradient(qkv: Tensor, out: Tensor, lse: Tensor, gradient: Tensor, heads: int) -> Tensor:
    batch, tokens, three = qkv.shape
    width = three // 3 // heads
    to, keys = torch.empty_like(qkv), _room(tokens, 16)
    _backward[(batch * heads,)](
        qkv, out, lse, gradient.contiguous(), to, tokens, width**-0.5, width**-0.5 * _LOG2_E,
        HEADS=heads, WIDTH=width, KEYS=keys, WIDE=_room(width, 16),
        num_warps=8 if keys > 64 else 4,
    )  # fmt: skip
    return to


@_gradient.register_fake
def _(qkv: Tensor, *_: object) -> Tensor:
    return torch.empty_like(qkv)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0].contiguous(), *output)
    ctx.heads = inputs[1]


def _back(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
    qkv, out, lse = ctx.saved_tensors
    return _gradient(qkv, out, lse, gradient, ctx.heads), None


_attention.register_autograd(_back, setup_context=_keep)


def short_attention(qkv: Tensor, heads: int) -> Tensor:
    """(B, N, 3 · dim), queries, keys and values head by head -> (B, N, dim)"""
    mixed: Tensor = _attention(qkv, heads)[0]
    return mixed
