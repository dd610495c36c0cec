"""What lies between a block's products, as Triton kernels for GPUs: sums with norms, and GELU.

These are bound by memory, so each reads and writes everything once. Their backwards also add up, as
it passes by, what biases and norms need, for which there would be passes of their own otherwise.
That is why biases come with the sum or GELU that follows a product, instead of with the product;
where no gradient is asked for, GELU takes what has its bias already.
The residual stream is float32, everything else half precision. `usable` says where they work.
"""

from typing import Any

import torch
from torch import Tensor, nn

from flexpredict.model import kernels
from flexpredict.model.kernels import tl, triton

_WIDEST = 4096  # of a row that a program holds
_WHOLE = torch.contiguous_format
_PROGRAMS = 1056  # 8 for each processor of an H200; all go on until the rows are through


def usable(x: Tensor) -> bool:
    """Whether a block with this residual stream can be computed with what is here."""
    if not kernels.allowed or not x.is_cuda or not torch.is_autocast_enabled("cuda"):
        return False
    return x.dtype == torch.float32 and x.shape[-1] <= _WIDEST


if triton is not None:

    @triton.jit
    def _add_norm(
        x, branch, bias, weight, shift, stream, normed, mean, scale, rows, eps,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        place = tl.arange(0, WIDE)
        inside = place < WIDTH
        at = row[:, None] * WIDTH + place[None, :]
        there = (row[:, None] < rows) & inside[None, :]
        added = tl.load(branch + at, mask=there, other=0.0).to(tl.float32)
        added += tl.load(bias + place, mask=inside, other=0.0)[None, :]
        s = tl.load(x + at, mask=there, other=0.0) + added
        tl.store(stream + at, s, mask=there)
        m = tl.sum(s, 1) / WIDTH
        away = tl.where(inside[None, :], s - m[:, None], 0.0)
        r = 1 / tl.sqrt(tl.sum(away * away, 1) / WIDTH + eps)
        tl.store(mean + row, m, mask=row < rows)
        tl.store(scale + row, r, mask=row < rows)
        w = tl.load(weight + place, mask=inside, other=0.0)
        b = tl.load(shift + place, mask=inside, other=0.0)
        y = away * r[:, None] * w[None, :] + b[None, :]
        tl.store(normed + at, y.to(normed.dtype.element_ty), mask=there)

    @triton.jit
    def _add_norm_backward(
        stream, mean, scale, weight, by_normed, by_stream, to, to_branch, sums, rows,
        PASSED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    ):  # fmt: skip
        """Gradients of the stream and the branch; sums for weight, shift and bias."""
        place = tl.arange(0, WIDE)
        inside = place < WIDTH
        w = tl.load(weight + place, mask=inside, other=0.0)[None, :]
        for_weight = tl.zeros((ROWS, WIDE), dtype=tl.float32)
        for_shift = tl.zeros((ROWS, WIDE), dtype=tl.float32)
        for_bias = tl.zeros((ROWS, WIDE), dtype=tl.float32)
        for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
            row = first + tl.arange(0, ROWS)
            at = row[:, None].to(tl.int64) * WIDTH + place[None, :]
            there = (row[:, None] < rows) & inside[None, :]
            s = tl.load(stream + at, mask=there, other=0.0)
            g = tl.load(by_normed + at, mask=there, other=0.0).to(tl.float32)
            m = tl.load(mean + row, mask=row < rows, other=0.0)[:, None]
            r = tl.load(scale + row, mask=row < rows, other=0.0)[:, None]
            unit = tl.where(there, (s - m) * r, 0.0)
            for_weight += g * unit
            for_shift += g
            g *= w
            along = tl.sum(g * unit, 1)[:, None] / WIDTH
            d = r * (g - tl.sum(g, 1)[:, None] / WIDTH - unit * along)
            if PASSED:
                d += tl.load(by_stream + at, mask=there, other=0.0)
            d = tl.where(there, d, 0.0)
            for_bias += d
            tl.store(to + at, d, mask=there)
            tl.store(to_branch + at, d.to(to_branch.dtype.element_ty), mask=there)
        sums += tl.program_id(0) * 3 * WIDTH + place
        tl.store(sums, tl.sum(for_weight, 0), mask=inside)
        tl.store(sums + WIDTH, tl.sum(for_shift, 0), mask=inside)
        tl.store(sums + 2 * WIDTH, tl.sum(for_bias, 0), mask=inside)

    @triton.jit
    def _tail(size):
        """The share of a normal distribution beyond a size, and exp(−size² / 2).

        The share is the bell times a polynomial, off by at most 3e-5 of itself where it is above
        1e-6: a sixtieth of what bfloat16 rounds. erf takes longer than numbers take to arrive.
        """
        size = tl.minimum(size, 12.0)  # beyond it both are nothing
        bell = tl.exp2(-0.72134752044 * size * size)
        ratio = 3.5893837e-05 - 1.2926532e-06 * size
        ratio = ratio * size - 0.00043902098
        ratio = ratio * size + 0.0031391124
        ratio = ratio * size - 0.014769173
        ratio = ratio * size + 0.049236572
        ratio = ratio * size - 0.12366294
        ratio = ratio * size + 0.24644325
        ratio = ratio * size - 0.39838135
        ratio = ratio * size + 0.49998425
        return ratio * bell, bell

    @triton.jit
    def _gelu(
        x, bias, out, rows,
        BIASED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        at = row[:, None] * WIDTH + place[None, :]
        there = (row[:, None] < rows) & (place[None, :] < WIDTH)
        h = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        if BIASED:
            h += tl.load(bias + place, mask=place < WIDTH, other=0.0)[None, :]
        tail, _ = _tail(tl.abs(h))
        y = tl.maximum(h, 0.0) - tl.abs(h) * tail
        tl.store(out + at, y.to(out.dtype.element_ty), mask=there)

    @triton.jit
    def _gelu_backward(
        x, bias, gradient, to, sums, rows,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = place < WIDTH
        b = tl.load(bias + place, mask=inside, other=0.0)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
            row = first + tl.arange(0, ROWS)
            at = row[:, None].to(tl.int64) * WIDTH + place[None, :]
            there = (row[:, None] < rows) & inside[None, :]
            h = tl.load(x + at, mask=there, other=0.0).to(tl.float32) + b[None, :]
            tail, bell = _tail(tl.abs(h))
            slope = tl.where(h < 0, tail, 1 - tail) + h * bell * 0.3989422804
            d = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32) * slope
            total += d
            tl.store(to + at, d.to(to.dtype.element_ty), mask=there)
        tl.store(sums + tl.program_id(0) * WIDTH + place, tl.sum(total, 0), mask=inside)


# Tiles are the fastest of those tried on an H200, at 0.8 to 0.96 of what their bytes allow.


def _tile(width: int) -> dict[str, int]:
    """Some rows of a narrow stream or one of a wide one, and the warps that hold them."""
    wide = triton.next_power_of_2(width)
    return {"ROWS": max(1, 1024 // wide), "WIDE": wide, "num_warps": max(2, wide // 1024)}


@torch.library.custom_op("flexpredict::add_norm", mutates_args=())
def _add_norm_op(
    x: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    stream, normed, mean, scale = _add_norm_fake(x, branch)
    tile = _tile(width)
    x, branch = x.contiguous(), branch.contiguous()
    with kernels.launched_by(x):
        _add_norm[(triton.cdiv(rows, tile["ROWS"]),)](
            x, branch, bias, weight, shift, stream, normed, mean, scale, rows, eps,
            WIDTH=width, **tile,
        )  # fmt: skip
    return stream, normed, mean, scale


@_add_norm_op.register_fake
def _add_norm_fake(x: Tensor, branch: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean = x.new_empty(x.shape[:-1])
    stream, normed = (torch.empty_like(t, memory_format=_WHOLE) for t in (x, branch))
    return stream, normed, mean, torch.empty_like(mean)


@torch.library.custom_op("flexpredict::add_norm_backward", mutates_args=())
def _add_norm_gradient(
    stream: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    by_normed: Tensor,
    by_stream: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    width, rows = stream.shape[-1], stream.numel() // stream.shape[-1]
    tile = _tile(width)
    programs = min(_PROGRAMS, triton.cdiv(rows, tile["ROWS"]))
    to, to_branch = torch.empty_like(stream), torch.empty_like(by_normed, memory_format=_WHOLE)
    sums = stream.new_empty(programs, 3, width)
    passed = stream if by_stream is None else by_stream.contiguous()
    by_normed = by_normed.contiguous()
    with kernels.launched_by(stream):
        _add_norm_backward[(programs,)](
            stream, mean, scale, weight, by_normed, passed, to, to_branch, sums, rows,
            PASSED=by_stream is not None, WIDTH=width, **tile,
        )  # fmt: skip
    return to, to_branch, sums.sum(0)


@_add_norm_gradient.register_fake
def _(
    stream: Tensor, _mean: Tensor, _scale: Tensor, _weight: Tensor, by_normed: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    sums = stream.new_empty(3, stream.shape[-1])
    return torch.empty_like(stream), torch.empty_like(by_normed, memory_format=_WHOLE), sums


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    stream, _, mean, scale = output
    ctx.save_for_backward(stream, mean, scale, inputs[3])
    ctx.set_materialize_grads(False)


def _norm_back(
    ctx: Any, by_stream: Tensor | None, by_normed: Tensor, *_: object
) -> tuple[Any, ...]:
    stream, mean, scale, weight = ctx.saved_tensors
    to, to_branch, sums = _add_norm_gradient(stream, mean, scale, weight, by_normed, by_stream)
    for_weight, for_shift, for_bias = sums.unbind(0)
    return to, to_branch, for_bias, for_weight, for_shift, None


_add_norm_op.register_autograd(_norm_back, setup_context=_keep_norm)


@torch.library.custom_op("flexpredict::bias_gelu", mutates_args=())
def _gelu_op(x: Tensor, bias: Tensor | None) -> Tensor:
    x, out = x.contiguous(), torch.empty_like(x, memory_format=_WHOLE)
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    columns = 512 if width % 1024 else 1024
    tall = 2048 // columns
    grid = triton.cdiv(rows, tall), triton.cdiv(width, columns)
    biased = bias is not None
    with kernels.launched_by(x):
        _gelu[grid](
            x, bias if biased else x, out, rows,
            BIASED=biased, WIDTH=width, ROWS=tall, COLUMNS=columns,
        )  # fmt: skip
    return out


@_gelu_op.register_fake
def _(x: Tensor, _bias: Tensor | None) -> Tensor:
    return torch.empty_like(x, memory_format=_WHOLE)


@torch.library.custom_op("flexpredict::bias_gelu_backward", mutates_args=())
def _gelu_gradient(x: Tensor, bias: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    parts = triton.cdiv(width, 256)
    programs = min(triton.cdiv(_PROGRAMS, parts), triton.cdiv(rows, 8))
    to, sums = torch.empty_like(x), bias.new_empty(programs, width)
    gradient = gradient.contiguous()
    with kernels.launched_by(x):
        _gelu_backward[(programs, parts)](
            x, bias, gradient, to, sums, rows, WIDTH=width, ROWS=8, COLUMNS=256
        )
    return to, sums.sum(0)


@_gelu_gradient.register_fake
def _(x: Tensor, bias: Tensor, _gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=_WHOLE), torch.empty_like(bias)


def _keep_gelu(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gelu_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return _gelu_gradient(*ctx.saved_tensors, gradient)


_gelu_op.register_autograd(_gelu_back, setup_context=_keep_gelu)


def add_norm(
    x: Tensor, branch: Tensor, bias: Tensor | None, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """x + branch + bias, and its norm in the branch's format."""
    if bias is None:  # a block before this one was computed otherwise
        bias = torch.zeros_like(norm.bias)
    stream, normed, _, _ = _add_norm_op(x, branch, bias, norm.weight, norm.bias, norm.eps)
    return stream, normed


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """GELU of x + bias, in x's format."""
    gated: Tensor = _gelu_op(x, bias)
    return gated


def gelu(x: Tensor) -> Tensor:
    """GELU in x's format, where no gradient is asked for."""
    assert not torch.is_grad_enabled()
    gated: Tensor = _gelu_op(x, None)
    return gated
