"""Attention over sequences so short that all keys fit into registers, as Triton kernels for GPUs.

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
_TILE = 64
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
    def _tile(
        at, first, tokens, step, WIDTH: tl.constexpr, COUNT: tl.constexpr, WIDE: tl.constexpr
    ):
        """Rows [first, first + COUNT) of a head; zeros beyond its tokens and its width."""
        row = first + tl.arange(0, COUNT)
        place = tl.arange(0, WIDE)
        there = (row[:, None] < tokens) & (place[None, :] < WIDTH)
        return tl.load(at + row[:, None] * step + place[None, :], mask=there, other=0.0)

    @triton.jit
    def _put(
        at, first, tokens, step, value,
        WIDTH: tl.constexpr, COUNT: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        row = first + tl.arange(0, COUNT)
        place = tl.arange(0, WIDE)
        there = (row[:, None] < tokens) & (place[None, :] < WIDTH)
        value = value.to(at.dtype.element_ty)
        tl.store(at + row[:, None] * step + place[None, :], value, mask=there)

    @triton.jit
    def _scores(q, k, first, tokens, scale, COUNT: tl.constexpr):
        known = first + tl.arange(0, COUNT) < tokens
        return tl.where(known[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))

    @triton.jit
    def _forward(
        qkv, out, lse, tokens, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr,
        A: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        """A query tile of A rows against keys in tiles of A and, if there are more, of B."""
        head, image = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
        first, dim = tl.program_id(1) * A, HEADS * WIDTH
        step = 3 * dim
        start = qkv + image.to(tl.int64) * tokens * step + head * WIDTH
        q = _tile(start, first, tokens, step, WIDTH, A, WIDE)
        k = _tile(start + dim, 0, tokens, step, WIDTH, A, WIDE)
        v = _tile(start + 2 * dim, 0, tokens, step, WIDTH, A, WIDE)
        score = _scores(q, k, 0, tokens, scale, A)
        highest = tl.max(score, 1)
        if B > 0:
            k = _tile(start + dim, A, tokens, step, WIDTH, B, WIDE)
            other = _scores(q, k, A, tokens, scale, B)
            highest = tl.maximum(highest, tl.max(other, 1))
        weight = tl.exp2(score - highest[:, None])
        total = tl.sum(weight, 1)
        mixed = tl.dot(weight.to(v.dtype), v)
        if B > 0:
            v = _tile(start + 2 * dim, A, tokens, step, WIDTH, B, WIDE)
            weight = tl.exp2(other - highest[:, None])
            total += tl.sum(weight, 1)
            mixed += tl.dot(weight.to(v.dtype), v)
        to = out + image.to(tl.int64) * tokens * dim + head * WIDTH
        _put(to, first, tokens, dim, mixed / total[:, None], WIDTH, A, WIDE)
        row = first + tl.arange(0, A)
        tl.store(lse + tl.program_id(0) * tokens + row, highest + tl.log2(total), mask=row < tokens)

    @triton.jit
    def _pair(q, k, v, g, norm, delta, first, tokens, scale, log_scale, COUNT: tl.constexpr):
        """Weights of a query tile on a key tile, and the slope of the loss by their scores."""
        weight = tl.exp2(_scores(q, k, first, tokens, log_scale, COUNT) - norm[:, None])
        slope = weight * (tl.dot(g, tl.trans(v)) - delta[:, None]) * scale
        return weight.to(g.dtype), slope.to(g.dtype)

    @triton.jit
    def _beside(
        out, lse, gradient, first, tokens, dim, WIDTH, COUNT: tl.constexpr, WIDE: tl.constexpr
    ):
        """What the backward needs of a query tile beside its queries."""
        g = _tile(gradient, first, tokens, dim, WIDTH, COUNT, WIDE)
        o = _tile(out, first, tokens, dim, WIDTH, COUNT, WIDE)
        row = first + tl.arange(0, COUNT)
        # Rows that are not there weigh nothing: 2 to the power of minus infinity.
        norm = tl.load(lse + row, mask=row < tokens, other=float("inf"))
        return g, norm, tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)

    @triton.jit
    def _backward(
        qkv, out, lse, gradient, to, tokens, scale, log_scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr,
        A: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        """All of a head: tiles of A and, if there are more tokens, of B, each against each."""
        head, image = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
        dim = HEADS * WIDTH
        step = 3 * dim
        start = image.to(tl.int64) * tokens * step + head * WIDTH
        outer = image.to(tl.int64) * tokens * dim + head * WIDTH
        qkv, to, out, gradient = qkv + start, to + start, out + outer, gradient + outer
        lse = lse + tl.program_id(0) * tokens
        qa = _tile(qkv, 0, tokens, step, WIDTH, A, WIDE)
        ka = _tile(qkv + dim, 0, tokens, step, WIDTH, A, WIDE)
        va = _tile(qkv + 2 * dim, 0, tokens, step, WIDTH, A, WIDE)
        ga, norm_a, delta_a = _beside(out, lse, gradient, 0, tokens, dim, WIDTH, A, WIDE)
        weight, slope = _pair(qa, ka, va, ga, norm_a, delta_a, 0, tokens, scale, log_scale, A)
        dq = tl.dot(slope, ka)
        dk = tl.dot(tl.trans(slope), qa)
        dv = tl.dot(tl.trans(weight), ga)
        if B > 0:
            kb = _tile(qkv + dim, A, tokens, step, WIDTH, B, WIDE)
            vb = _tile(qkv + 2 * dim, A, tokens, step, WIDTH, B, WIDE)
            weight, slope = _pair(qa, kb, vb, ga, norm_a, delta_a, A, tokens, scale, log_scale, B)
            dq += tl.dot(slope, kb)
            dkb = tl.dot(tl.trans(slope), qa)
            dvb = tl.dot(tl.trans(weight), ga)
            _put(to, 0, tokens, step, dq, WIDTH, A, WIDE)
            qb = _tile(qkv, A, tokens, step, WIDTH, B, WIDE)
            gb, norm_b, delta_b = _beside(out, lse, gradient, A, tokens, dim, WIDTH, B, WIDE)
            weight, slope = _pair(qb, ka, va, gb, norm_b, delta_b, 0, tokens, scale, log_scale, A)
            dqb = tl.dot(slope, ka)
            dk += tl.dot(tl.trans(slope), qb)
            dv += tl.dot(tl.trans(weight), gb)
            weight, slope = _pair(qb, kb, vb, gb, norm_b, delta_b, A, tokens, scale, log_scale, B)
            dqb += tl.dot(slope, kb)
            dkb += tl.dot(tl.trans(slope), qb)
            dvb += tl.dot(tl.trans(weight), gb)
            _put(to, A, tokens, step, dqb, WIDTH, B, WIDE)
            _put(to + dim, A, tokens, step, dkb, WIDTH, B, WIDE)
            _put(to + 2 * dim, A, tokens, step, dvb, WIDTH, B, WIDE)
        else:
            _put(to, 0, tokens, step, dq, WIDTH, A, WIDE)
        _put(to + dim, 0, tokens, step, dk, WIDTH, A, WIDE)
        _put(to + 2 * dim, 0, tokens, step, dv, WIDTH, A, WIDE)


def _warps(width: int) -> int:
    return 8 if width > 64 else 4


def _tiles(tokens: int) -> tuple[int, int]:
    """How many rows the two tiles hold: powers of two, the second 0 where one is enough."""
    if tokens <= _TILE:
        return _room(tokens, 16), 0
    return _TILE, _room(tokens - _TILE, 16)


@torch.library.custom_op("flexpredict::short_attention", mutates_args=())
def _attention(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, three = qkv.shape
    dim = three // 3
    width = dim // heads
    qkv = qkv.contiguous()
    out = qkv.new_empty(batch, tokens, dim)
    lse = qkv.new_empty(batch * heads, tokens, dtype=torch.float32)
    a, b = _tiles(tokens)
    _forward[(batch * heads, -(-tokens // a))](
        qkv, out, lse, tokens, width**-0.5 * _LOG2_E,
        HEADS=heads, WIDTH=width, A=a, B=b, WIDE=_room(width, 16), num_warps=_warps(width),
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
    to, (a, b) = torch.empty_like(qkv), _tiles(tokens)
    _backward[(batch * heads,)](
        qkv, out, lse, gradient.contiguous(), to, tokens, width**-0.5, width**-0.5 * _LOG2_E,
        HEADS=heads, WIDTH=width, A=a, B=b, WIDE=_room(width, 16), num_warps=_warps(width),
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
