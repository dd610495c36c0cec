"""Products of the MLPs with GELU in the same kernel, against the library's product and our GELU.

    python benchmarks/products.py --models b16,l16,h14 --batch 1024      on one GPU

A trial: nothing of this is in the package. The predictor is 384 wide whatever the encoder is, and
the library's products are slowest there: an inner length of 384 is over before tiles are written.
Programs here stay, and go from tile to tile; tiles are fetched and written by the copy engine.
Each form is compared with the library's way before it is timed.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from step_cases import MODELS, clock, masks_for, say, setting
from torch import Tensor

from flexpredict.model import fused
from flexpredict.model.kernels import tl, triton

ENDS = {"none": 0, "gelu": 1, "gelu_backward": 2}


class Form(NamedTuple):
    """Tiles of rows, of columns and of the inner length; how many are on their way; warps."""

    rows: int
    columns: int
    inner: int
    stages: int
    warps: int
    parts: int = 1  # in which a tile is written, one after the other
    each: int = 1  # programs that share a processor: one writes while another multiplies


FORMS = [
    Form(128, 256, 64, 3, 8, 2), Form(128, 256, 64, 4, 8, 2), Form(256, 128, 64, 3, 8, 2),
    Form(128, 128, 64, 4, 8), Form(128, 128, 128, 3, 8, 2), Form(128, 128, 64, 3, 8, 2, 2),
    Form(128, 128, 64, 2, 8, 2, 2), Form(128, 128, 32, 4, 8, 2, 2), Form(64, 256, 64, 2, 4, 2, 2),
    Form(64, 128, 64, 3, 4, 2, 3),
]  # fmt: skip


if triton is not None:

    @triton.jit
    def _product(
        x, w, bias, wide, out, sums, rows, width, length,
        TURNED: tl.constexpr, END: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
        INNER: tl.constexpr, PARTS: tl.constexpr,
    ):  # fmt: skip
        """x (rows, length) with w (width, length), or if TURNED (length, width).

        END 0: out is the product. 1: wide is the product with its bias, out is GELU of it. 2: out
        is the product times GELU's slope at wide, sums (tiles of rows, width) its sums over rows.
        """
        across = tl.cdiv(width, COLUMNS)
        tiles = tl.cdiv(rows, ROWS) * across
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            row, column = tile // across * ROWS, tile % across * COLUMNS
            total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
            for inner in range(0, length, INNER):
                left = x.load([row, inner])
                if TURNED:
                    total = tl.dot(left, w.load([inner, column]), total)
                else:
                    total = tl.dot(left, w.load([column, inner]).T, total)
            if PARTS == 2:
                halves = tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1))
                one, two = tl.split(halves)
                _end(one, bias, wide, out, sums, row, column, width, END, ROWS, COLUMNS // 2)
                _end(
                    two, bias, wide, out, sums, row, column + COLUMNS // 2,
                    width, END, ROWS, COLUMNS // 2,
                )  # fmt: skip
            else:
                _end(total, bias, wide, out, sums, row, column, width, END, ROWS, COLUMNS)

    @triton.jit
    def _end(
        total, bias, wide, out, sums, row, column, width,
        END: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        kind = out.dtype
        if END == 0:
            out.store([row, column], total.to(kind))
        if END == 1:
            place = column + tl.arange(0, COLUMNS)
            total += tl.load(bias + place, mask=place < width, other=0.0)[None, :]
            narrow = total.to(kind)
            wide.store([row, column], narrow)
            h = narrow.to(tl.float32)
            tail, _ = fused._tail(tl.abs(h))
            out.store([row, column], (tl.maximum(h, 0.0) - tl.abs(h) * tail).to(kind))
        if END == 2:
            h = wide.load([row, column]).to(tl.float32)
            tail, bell = fused._tail(tl.abs(h))
            slope = tl.where(h < 0, tail, 1 - tail) + h * bell * 0.3989422804
            d = total.to(kind).to(tl.float32) * slope
            out.store([row, column], d.to(kind))
            place = column + tl.arange(0, COLUMNS)
            tl.store(sums + row // ROWS * width + place, tl.sum(d, 0), mask=place < width)


def product(
    x: Tensor, weight: Tensor, *, turned: bool, end: str, form: Form, processors: int,
    bias: Tensor | None = None, wide: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """out, wide and the sums of the kernel above, as far as its end has them."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    rows, length = x.shape
    width = weight.shape[1 if turned else 0]
    out = x.new_empty(rows, width)
    if wide is None:
        wide = torch.empty_like(out) if end == "gelu" else out
    down, across = triton.cdiv(rows, form.rows), triton.cdiv(width, form.columns)
    sums = x.new_empty(down, width, dtype=torch.float32) if end == "gelu_backward" else x
    part = [form.rows, form.columns // form.parts]
    block = [form.inner, form.columns] if turned else [form.columns, form.inner]
    _product[(min(processors * form.each, down * across),)](
        TensorDescriptor.from_tensor(x, [form.rows, form.inner]),
        TensorDescriptor.from_tensor(weight, block),
        x if bias is None else bias,
        TensorDescriptor.from_tensor(wide, part),
        TensorDescriptor.from_tensor(out, part),
        sums, rows, width, length, TURNED=turned, END=ENDS[end],
        ROWS=form.rows, COLUMNS=form.columns, INNER=form.inner, PARTS=form.parts,
        num_stages=form.stages, num_warps=form.warps,
    )  # fmt: skip
    return out, wide, sums


class Case(NamedTuple):
    """Two ways to the same tensors."""

    name: str
    flops: float
    library: Callable[[], Any]
    ours: Callable[[Form], Any]


def cases(name: str, part: str, rows: int, dim: int, *, trained: bool) -> list[Case]:
    """The products of an MLP between which GELU lies, and those of the attention's projections."""
    processors = torch.cuda.get_device_properties(0).multi_processor_count

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale

    x, hidden = drawn(rows, dim), 4 * dim
    first, second = (drawn(*shape, scale=dim**-0.5) for shape in ((hidden, dim), (dim, hidden)))
    qkv, proj = (drawn(times * dim, dim, scale=dim**-0.5) for times in (3, 1))
    bias = torch.randn(hidden, device="cuda") * 0.02
    narrow, wide = bias.bfloat16(), F.linear(x, first)
    flops = 2.0 * rows * dim * hidden

    def forward() -> Any:
        if trained:
            h = F.linear(x, first)
            return fused._gelu_op(h, bias), h
        return fused._gelu_op(F.linear(x, first, narrow), None)

    def backward() -> Any:
        return fused._gelu_gradient(wide, torch.zeros_like(bias), x @ second)

    def of(weight: Tensor, end: str, turned: bool, form: Form) -> Any:
        return product(
            x, weight, turned=turned, end=end, form=form, processors=processors, bias=bias,
            wide=wide if end == "gelu_backward" else None,
        )  # fmt: skip

    about = f"{name} {part} {rows}x{dim}"
    found = [
        Case(f"{about} fc1 + gelu", flops, forward, lambda form: of(first, "gelu", False, form))
    ]
    if trained:
        found += [
            Case(
                f"{about} fc2 backward + gelu backward", flops, backward,
                lambda form: of(second, "gelu_backward", True, form),
            ),
            Case(
                f"{about} qkv", flops * 0.75, lambda: F.linear(x, qkv),
                lambda form: of(qkv, "none", False, form),
            ),
            Case(
                f"{about} proj", flops / 4, lambda: F.linear(x, proj),
                lambda form: of(proj, "none", False, form),
            ),
        ]  # fmt: skip
    return found


def compare(case: Case) -> None:
    """The library's way and the best of ours, timed in turn."""
    wanted = case.library()
    tensors = list(wanted) if isinstance(wanted, tuple) else [wanted]
    best: tuple[float, Form | None] = (float("inf"), None)
    failed = 0
    for form in FORMS:
        try:
            found = case.ours(form)[0]
            away = float((found.float() - tensors[0].float()).norm() / tensors[0].float().norm())
            assert away < 0.02, f"{form} is off by {away:.3f}"
            best = min(best, (clock(lambda form=form: case.ours(form), 0.05), form))
        except (triton.CompilationError, triton.runtime.errors.OutOfResources, RuntimeError):
            failed += 1  # more registers or shared memory than there are
    if best[1] is None:
        say({"case": case.name, "note": f"none of {len(FORMS)} forms can be made here"})
        return
    theirs = min(clock(case.library, 0.2), clock(case.library, 0.2))
    ours = min(clock(lambda: case.ours(best[1]), 0.2), best[0])
    say({
        "case": case.name, "library_ms": round(theirs * 1e3, 3), "ours_ms": round(ours * 1e3, 3),
        "ratio": round(theirs / ours, 3), "TFLOP_per_s": round(case.flops / ours / 1e12),
        "form": best[1]._asdict(), "failed": failed,
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="b16,l16,h14")
    parser.add_argument("--batch", type=int, default=1024)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this is about a GPU, and there is none here")
    seen: set[tuple[int, int]] = set()
    for name in chosen.models.split(","):
        assert name in MODELS, name
        objective, settings = setting(name)
        masks = masks_for(settings, objective, chosen.batch, 0)
        context, (blocks, targets) = masks.context.shape[1], masks.targets.shape[1:]
        encoder, predictor = objective.encoder, objective.predictor
        dims = encoder.dim, predictor.predictor_norm.weight.numel()
        patches = encoder.grid[0] * encoder.grid[1]
        del objective, encoder, predictor
        parts = [
            ("predictor", chosen.batch * blocks * (context + targets), dims[1], True),
            ("context", chosen.batch * context, dims[0], True),
            ("target", chosen.batch * patches, dims[0], False),
        ]
        for part, rows, dim, trained in parts:
            if (rows, dim) in seen:
                continue
            seen.add((rows, dim))
            torch.cuda.empty_cache()
            for case in cases(name, part, rows, dim, trained=trained):
                compare(case)


if __name__ == "__main__":
    main()
