"""Attention over sequences so short that all keys fit into registers, as Triton kernels for GPUs.

Kernels for long sequences walk over keys in tiles and keep their sums straight; a ViT's sequences
of some dozens of patches need none of that. Here one program sees all keys of a head at once, reads
queries, keys and values from where the projection left them, and writes all gradients to where the
projection expects them: nothing is transposed, stacked or copied. The gradient of the projection's
bias, a sum over tokens, is taken on the way. On an H200 that is several times the speed of the
library kernels at these lengths (docs/performance.md). `usable` says where it works; elsewhere
`scaled_dot_product_attention` does.
"""

from typing import Any

import torch
from torch import Tensor

from flexpredict.model import kernels
from flexpredict.model.kernels import tl, triton

_LONGEST = 128  # tokens: with more, library kernels are faster
_TILE = 64
_WIDEST = 96  # of a head: more does not fit beside 128 keys on GPUs other than an A100 or H100
_LOG2_E = 1.4426950408889634


def usable(x: Tensor, heads: int) -> bool:
    """Whether tokens (B, N, dim), once projected, can be attended to here."""
    if not kernels.allowed or not x.is_cuda:
        return False
    projected = torch.is_autocast_enabled("cuda") and x.dtype == torch.float32
    if not projected and x.dtype not in (torch.bfloat16, torch.float16):
        return False
    return x.shape[1] <= _LONGEST and x.shape[2] // heads <= _WIDEST


def _room(count: int, least: int) -> int:
    """The power of two that holds so many."""
    return max(least, 1 << (count - 1).bit_length())


if triton is not None:
    # A head's width is read in two parts, powers of two: 80 is 64 and 16, where one power of two
    # would be 128. Where one part is enough the second is not there (W2 = 0).

    @triton.jit
    def _part(at, first, tokens, step, START, WIDTH, COUNT: tl.constexpr, WIDE: tl.constexpr):
        row = first + tl.arange(0, COUNT)
        place = START + tl.arange(0, WIDE)
        there = (row[:, None] < tokens) & (place[None, :] < WIDTH)
        return tl.load(at + row[:, None] * step + place[None, :], mask=there, other=0.0)

    @triton.jit
    def _rows(
        at, first, tokens, step,
        WIDTH: tl.constexpr, COUNT: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    ):  # fmt: skip
        """Rows [first, first + COUNT) of a head; zeros beyond its tokens and its width."""
        one = _part(at, first, tokens, step, 0, WIDTH, COUNT, W1)
        two = one
        if W2 > 0:
            two = _part(at, first, tokens, step, W1, WIDTH, COUNT, W2)
        return one, two

    @triton.jit
    def _put(
        at, first, tokens, step, one, two,
        WIDTH: tl.constexpr, COUNT: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    ):  # fmt: skip
        row = first + tl.arange(0, COUNT)
        at += row[:, None] * step
        place = tl.arange(0, W1)[None, :]
        there = row[:, None] < tokens
        tl.store(at + place, one.to(at.dtype.element_ty), mask=there & (place < WIDTH))
        if W2 > 0:
            place = W1 + tl.arange(0, W2)[None, :]
            tl.store(at + place, two.to(at.dtype.element_ty), mask=there & (place < WIDTH))

    @triton.jit
    def _none(COUNT: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr):
        one = tl.zeros((COUNT, W1), dtype=tl.float32)
        two = one
        if W2 > 0:
            two = tl.zeros((COUNT, W2), dtype=tl.float32)
        return one, two

    @triton.jit
    def _products(a1, a2, b1, b2, W2: tl.constexpr):
        """Of every row of a with every row of b."""
        found = tl.dot(a1, tl.trans(b1))
        if W2 > 0:
            found = tl.dot(a2, tl.trans(b2), found)
        return found

    @triton.jit
    def _mix(weight, b1, b2, to1, to2, W2: tl.constexpr):
        """Adds sums of rows of b, weighted."""
        to1 = tl.dot(weight, b1, to1)
        if W2 > 0:
            to2 = tl.dot(weight, b2, to2)
        else:
            to2 = to1
        return to1, to2

    @triton.jit
    def _down(one, two, to1, to2, W2: tl.constexpr):
        """Adds all rows up."""
        to1 += tl.sum(one, 0)[None, :]
        if W2 > 0:
            to2 += tl.sum(two, 0)[None, :]
        else:
            to2 = to1
        return to1, to2

    @triton.jit
    def _forward(
        qkv, out, lse, tokens, scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
        A: tl.constexpr, B: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    ):  # fmt: skip
        """All queries of a head, some rows at a time; keys in a tile of A and maybe one of B."""
        head, image = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
        dim = HEADS * WIDTH
        step = 3 * dim
        qkv += image.to(tl.int64) * tokens * step + head * WIDTH
        out += image.to(tl.int64) * tokens * dim + head * WIDTH
        lse += tl.program_id(0) * tokens
        k1, k2 = _rows(qkv + dim, 0, tokens, step, WIDTH, A, W1, W2)
        v1, v2 = _rows(qkv + 2 * dim, 0, tokens, step, WIDTH, A, W1, W2)
        end = A
        if B > 0:
            k3, k4 = _rows(qkv + dim, A, tokens, step, WIDTH, B, W1, W2)
            v3, v4 = _rows(qkv + 2 * dim, A, tokens, step, WIDTH, B, W1, W2)
            end = tokens
        for first in range(0, end, ROWS):
            q1, q2 = _rows(qkv, first, tokens, step, WIDTH, ROWS, W1, W2)
            score = _products(q1, q2, k1, k2, W2) * scale
            if B == 0:
                known = tl.arange(0, A)[None, :] < tokens
                score = tl.where(known, score, float("-inf"))
            highest = tl.max(score, 1)
            if B > 0:
                known = A + tl.arange(0, B)[None, :] < tokens
                other = tl.where(known, _products(q1, q2, k3, k4, W2) * scale, float("-inf"))
                highest = tl.maximum(highest, tl.max(other, 1))
            weight = tl.exp2(score - highest[:, None])
            total = tl.sum(weight, 1)
            m1, m2 = _none(ROWS, W1, W2)
            m1, m2 = _mix(weight.to(v1.dtype), v1, v2, m1, m2, W2)
            if B > 0:
                weight = tl.exp2(other - highest[:, None])
                total += tl.sum(weight, 1)
                m1, m2 = _mix(weight.to(v1.dtype), v3, v4, m1, m2, W2)
            m1, m2 = m1 / total[:, None], m2 / total[:, None]
            _put(out, first, tokens, dim, m1, m2, WIDTH, ROWS, W1, W2)
            row = first + tl.arange(0, ROWS)
            tl.store(lse + row, highest + tl.log2(total), mask=row < tokens)

    @triton.jit
    def _against(
        k1, k2, v1, v2, q1, q2, g1, g2, norm, delta, dk1, dk2, dv1, dv2, dq1, dq2,
        first, tokens, scale, FULL: tl.constexpr, COUNT: tl.constexpr, W2: tl.constexpr,
    ):  # fmt: skip
        """Adds to gradients what queries and a tile of keys have to do with each other.

        Scores are (keys, queries): two of the three products that follow take them as they lie.
        """
        score = _products(k1, k2, q1, q2, W2) * scale - norm[None, :]
        if not FULL:
            known = first + tl.arange(0, COUNT)[:, None] < tokens
            score = tl.where(known, score, float("-inf"))
        weight = tl.exp2(score)
        slope = (weight * (_products(v1, v2, g1, g2, W2) - delta[None, :])).to(g1.dtype)
        dv1, dv2 = _mix(weight.to(g1.dtype), g1, g2, dv1, dv2, W2)
        dk1, dk2 = _mix(slope, q1, q2, dk1, dk2, W2)
        dq1, dq2 = _mix(tl.trans(slope), k1, k2, dq1, dq2, W2)
        return dk1, dk2, dv1, dv2, dq1, dq2

    @triton.jit
    def _backward(
        qkv, out, lse, gradient, to, sums, tokens, scale, log_scale,
        HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
        A: tl.constexpr, B: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr,
    ):  # fmt: skip
        """All of a head: keys and their gradients stay, queries come some rows at a time.

        sums: (images, 2, dim), over tokens, of the gradients of queries and values.
        """
        head, image = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
        dim = HEADS * WIDTH
        step = 3 * dim
        start = image.to(tl.int64) * tokens * step + head * WIDTH
        outer = image.to(tl.int64) * tokens * dim + head * WIDTH
        qkv, to, out, gradient = qkv + start, to + start, out + outer, gradient + outer
        lse += tl.program_id(0) * tokens
        k1, k2 = _rows(qkv + dim, 0, tokens, step, WIDTH, A, W1, W2)
        v1, v2 = _rows(qkv + 2 * dim, 0, tokens, step, WIDTH, A, W1, W2)
        dk1, dk2 = _none(A, W1, W2)
        dv1, dv2 = _none(A, W1, W2)
        sum1, sum2 = _none(1, W1, W2)
        end = A
        if B > 0:
            k3, k4 = _rows(qkv + dim, A, tokens, step, WIDTH, B, W1, W2)
            v3, v4 = _rows(qkv + 2 * dim, A, tokens, step, WIDTH, B, W1, W2)
            dk3, dk4 = _none(B, W1, W2)
            dv3, dv4 = _none(B, W1, W2)
            end = tokens
        for first in range(0, end, ROWS):
            q1, q2 = _rows(qkv, first, tokens, step, WIDTH, ROWS, W1, W2)
            g1, g2 = _rows(gradient, first, tokens, dim, WIDTH, ROWS, W1, W2)
            o1, o2 = _rows(out, first, tokens, dim, WIDTH, ROWS, W1, W2)
            delta = tl.sum(g1.to(tl.float32) * o1.to(tl.float32), 1)
            if W2 > 0:
                delta += tl.sum(g2.to(tl.float32) * o2.to(tl.float32), 1)
            row = first + tl.arange(0, ROWS)
            # Rows that are not there weigh nothing: 2 to the power of minus infinity.
            norm = tl.load(lse + row, mask=row < tokens, other=float("inf"))
            dq1, dq2 = _none(ROWS, W1, W2)
            dk1, dk2, dv1, dv2, dq1, dq2 = _against(
                k1, k2, v1, v2, q1, q2, g1, g2, norm, delta, dk1, dk2, dv1, dv2, dq1, dq2,
                0, tokens, log_scale, B > 0, A, W2,
            )  # fmt: skip
            if B > 0:
                dk3, dk4, dv3, dv4, dq1, dq2 = _against(
                    k3, k4, v3, v4, q1, q2, g1, g2, norm, delta, dk3, dk4, dv3, dv4, dq1, dq2,
                    A, tokens, log_scale, False, B, W2,
                )  # fmt: skip
            _put(to, first, tokens, step, dq1 * scale, dq2 * scale, WIDTH, ROWS, W1, W2)
            sum1, sum2 = _down(dq1, dq2, sum1, sum2, W2)
        sums += image * 2 * dim + head * WIDTH
        _put(sums, 0, 1, dim, sum1 * scale, sum2 * scale, WIDTH, 1, W1, W2)
        sum1, sum2 = _none(1, W1, W2)
        sum1, sum2 = _down(dv1, dv2, sum1, sum2, W2)
        _put(to + dim, 0, tokens, step, dk1 * scale, dk2 * scale, WIDTH, A, W1, W2)
        _put(to + 2 * dim, 0, tokens, step, dv1, dv2, WIDTH, A, W1, W2)
        if B > 0:
            _put(to + dim, A, tokens, step, dk3 * scale, dk4 * scale, WIDTH, B, W1, W2)
            _put(to + 2 * dim, A, tokens, step, dv3, dv4, WIDTH, B, W1, W2)
            sum1, sum2 = _down(dv3, dv4, sum1, sum2, W2)
        _put(sums + dim, 0, 1, dim, sum1, sum2, WIDTH, 1, W1, W2)


def _shapes(tokens: int, width: int) -> dict[str, int]:
    """The tiles of keys and the parts of a width, powers of two, the second 0 where one will do."""
    a, b = _room(tokens, 16), 0
    if tokens > _TILE:
        a, b = _TILE, _room(tokens - _TILE, 16)
    w1, w2 = _room(width, 16), 0
    if _TILE < width < w1:
        w1, w2 = _TILE, _room(width - _TILE, 16)
    return {"WIDTH": width, "A": a, "B": b, "W1": w1, "W2": w2}


def _launch(shapes: dict[str, int], backward: bool) -> dict[str, int]:
    """Query rows at a time, warps and stages: the fastest of those tried on an H200."""
    a, b, w2 = shapes["A"], shapes["B"], shapes["W2"]
    if b == 0:
        rows, warps, stages = a, 4 if a == _TILE else 2, 1
    elif backward and w2:
        rows, warps, stages = 32, 4, 1
    elif backward and b == _TILE:
        rows, warps, stages = 64, 4, 1
    else:
        rows, warps, stages = 32, 2, 2
    return {"ROWS": rows, "num_warps": warps, "num_stages": stages}


@torch.library.custom_op("flexpredict::short_attention", mutates_args=())
def _attention(qkv: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    batch, tokens, three = qkv.shape
    dim = three // 3
    width = dim // heads
    qkv = qkv.contiguous()
    out = qkv.new_empty(batch, tokens, dim)
    lse = qkv.new_empty(batch * heads, tokens, dtype=torch.float32)
    shapes = _shapes(tokens, width)
    with kernels.launched_by(qkv):
        _forward[(batch * heads,)](
            qkv, out, lse, tokens, width**-0.5 * _LOG2_E,
            HEADS=heads, **shapes, **_launch(shapes, backward=False),
        )  # fmt: skip
    return out, lse


@_attention.register_fake
def _(qkv: Tensor, _bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, three = qkv.shape
    out = qkv.new_empty(batch, tokens, three // 3)
    return out, qkv.new_empty(batch * heads, tokens, dtype=torch.float32)


@torch.library.custom_op("flexpredict::short_attention_backward", mutates_args=())
def _gradient(
    qkv: Tensor, out: Tensor, lse: Tensor, gradient: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    batch, tokens, three = qkv.shape
    width = three // 3 // heads
    to, sums = torch.empty_like(qkv), lse.new_empty(batch, 2, three // 3)
    shapes = _shapes(tokens, width)
    scale, gradient = width**-0.5, gradient.contiguous()
    with kernels.launched_by(qkv):
        _backward[(batch * heads,)](
            qkv, out, lse, gradient, to, sums, tokens, scale, scale * _LOG2_E,
            HEADS=heads, **shapes, **_launch(shapes, backward=True),
        )  # fmt: skip
    return to, sums.sum(0)


@_gradient.register_fake
def _(qkv: Tensor, _out: Tensor, lse: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), lse.new_empty(2, qkv.shape[2] // 3)


def _keep(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, int], output: tuple[Tensor, Tensor]
) -> None:
    ctx.save_for_backward(inputs[0].contiguous(), *output)
    ctx.biased, ctx.heads = inputs[1] is not None, inputs[2]


def _back(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
    qkv, out, lse = ctx.saved_tensors
    to, sums = _gradient(qkv, out, lse, gradient, ctx.heads)
    if not ctx.biased:
        return to, None, None
    # One number added to all keys adds one number to all scores of a query: softmax ignores it.
    return to, torch.cat([sums[0], torch.zeros_like(sums[0]), sums[1]]), None


_attention.register_autograd(_back, setup_context=_keep)


def short_attention(qkv: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    """(B, N, 3 · dim), queries, keys and values head by head -> (B, N, dim)

    bias: one that was added to qkv unseen by autograd; here it gets its gradient.
    """
    mixed: Tensor = _attention(qkv, bias, heads)[0]
    return mixed
