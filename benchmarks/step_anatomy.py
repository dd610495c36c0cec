"""Where a pretraining step's time and memory go, on one GPU.

python benchmarks/step_anatomy.py profile --models b16 --batches 1024      time by kernel
python benchmarks/step_anatomy.py attainable --models b16 --batches 1024   against its own products
python benchmarks/step_anatomy.py memory --models b16 --batches 256,512    peaks
python benchmarks/step_anatomy.py attention --models l16 --batches 1024    the library's, by kind
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from step_cases import CUDA, Case, clock, masks_for, measured, ours, pictures_of, say, setting
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View


def profile(name: str, batch: int, options: dict) -> None:
    torch._dynamo.reset()
    case = Case(name, "ours", batch, "even", **options)
    for _ in range(3):
        case.step()
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as seen:
        for _ in range(2):
            case.step()
        torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name][0] += event.device_time / 2e3
            spent[event.name][1] += 0.5
    whole, step = sum(time_ for time_, _ in spent.values()), clock(case.step) * 1e3
    print(f"{name} batch {batch}: {whole:.1f} ms of kernels in a step of {step:.1f} ms")
    for kernel, (time_, count) in sorted(spent.items(), key=lambda i: -i[1][0])[:28]:
        print(f"{time_:8.2f} ms {100 * time_ / whole:5.1f} % {count:6.0f} x {kernel[:110]}")
    sys.stdout.flush()


class _Alike:
    """A tensor's form, to make one like it: a step's own would not all fit beside each other."""

    def __init__(self, tensor: Tensor) -> None:
        self.form = tensor.shape, tensor.stride(), tensor.dtype

    def __repr__(self) -> str:
        return str(self.form)

    def made(self) -> Tensor:
        shape, stride, dtype = self.form
        made = torch.empty_strided(shape, stride, dtype=dtype, device=CUDA)
        return made.normal_() if dtype.is_floating_point else made.zero_()


class _Products(TorchDispatchMode):
    """Notes every matrix product and attention that a step computes, with the shapes it has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if any(part in name for part in ("aten.mm", "aten.addmm", "aten.bmm", "attention")):
            forms = [_Alike(a) if isinstance(a, Tensor) else a for a in args]
            self.calls.setdefault(f"{name}{forms}", [0, func, forms, kwargs or {}])[0] += 1
        return func(*args, **(kwargs or {}))


def bytes_of(objective: IJepa, masks: Masks, batch: int) -> float:
    """What has to travel between memory and processor beside products, each tensor once.

    Per token and block of width D, in units of D bytes. Forward: two sums with norms, each reads
    the float32 stream and a branch, writes the stream and the norm (12 + 12); GELU reads and writes
    4 D numbers (16). Backward: GELU reads two and writes one (24), each norm reads the stream, its
    gradient and the branch's, writes the stream's gradient and its bfloat16 copy (16 + 16).
    Per weight: AdamW 28, moving average 12, one cast for each use 6.
    """
    encoder, predictor = objective.encoder, objective.predictor
    rows, columns = encoder.grid
    context, (blocks, targets) = masks.context.shape[1], masks.targets.shape[1:]
    dim, narrow = encoder.dim, predictor.predictor_norm.weight.numel()
    depth, shallow = len(encoder.blocks), len(predictor.predictor_blocks)
    forward, both = 40, 96
    tokens = rows * columns * depth * dim * forward + context * depth * dim * both
    tokens += blocks * (context + targets) * shallow * narrow * both
    weights = sum(p.numel() for p in encoder.parameters())
    small = sum(p.numel() for p in predictor.parameters())
    return batch * tokens + weights * (28 + 12 + 6 + 6) + small * (28 + 6)


def attainable(name: str, batch: int, rate: float) -> None:
    """The step against its own products and attentions timed alone, and its bytes copied."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    case = Case(name, "ours", batch, "even", compiled=False, graph=False)
    with _Products() as seen:
        case.step()
    alone = 0.0
    masks, case = case.masks, None
    torch.cuda.empty_cache()
    for count, func, forms, kwargs in seen.calls.values():
        args = [form.made() if isinstance(form, _Alike) else form for form in forms]
        alone += count * clock(lambda func=func, a=args, k=kwargs: func(*a, **k), 0.1)
        del args
    room = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    there = torch.empty_like(room)
    bandwidth = 2 * room.numel() / clock(lambda: there.copy_(room), 0.2)
    objective, _ = setting(name)
    moved = bytes_of(objective, masks, batch) / bandwidth
    spent = batch / rate
    say({
        "model": name, "batch": batch, "step_ms": round(spent * 1e3, 1),
        "products_ms": round(alone * 1e3, 1), "bytes_ms": round(moved * 1e3, 1),
        "TB_per_s": round(bandwidth / 1e12, 2), "of_attainable": round((alone + moved) / spent, 3),
    })  # fmt: skip


def memory(name: str, batches: Sequence[int]) -> None:
    for checkpointing in (False, True):
        for batch in batches:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            objective, settings = setting(name, grad_checkpointing=checkpointing)
            step = ours(objective, settings, compiled=True, graph=False)
            images = pictures_of("noise", settings, batch)
            masks = masks_for(settings, objective, batch, 0)
            for _ in range(2):
                step(images, [[View(masks, Draws())]], 0.996)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            step(images, [[View(masks, Draws())]], 0.996)
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() / 2**30
            say(
                {
                    "model": name,
                    "checkpointing": checkpointing,
                    "batch": batch,
                    "GiB": round(peak, 3),
                }
            )
            del objective, step, images, masks


def attention(name: str, batch: int) -> None:
    """The target encoder's, forward, as chosen by the library and by each of its kinds, in turn."""
    objective, _ = setting(name)
    encoder = objective.encoder
    heads = encoder.blocks[0].attn.heads  # type: ignore[union-attr]
    rows, columns = encoder.grid
    shape = (batch, rows * columns, 3, heads, encoder.dim // heads)
    qkv = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)  # as blocks hand them over
    kinds = {
        "chosen": None,
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    for kind, backend in [*kinds.items(), *kinds.items()]:
        with nullcontext() if backend is None else sdpa_kernel(backend), torch.no_grad():
            try:
                taken = clock(lambda: F.scaled_dot_product_attention(query, key, value), 0.3)
            except RuntimeError as error:  # it has none for this shape
                say({"model": name, "attention": kind, "note": str(error).splitlines()[0]})
            else:
                say({"model": name, "batch": batch, "attention": kind, "ms": round(taken * 1e3, 3)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["profile", "attainable", "memory", "attention"])
    parser.add_argument("--models", default="b16")
    parser.add_argument("--batches", default="256,1024")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--graph", action="store_true", help="profile the step as a CUDA graph")
    chosen = parser.parse_args()
    batches = [int(batch) for batch in chosen.batches.split(",")]
    for name in chosen.models.split(","):
        if chosen.what == "profile":
            profile(name, batches[-1], {"compiled": not chosen.eager, "graph": chosen.graph})
        elif chosen.what == "attainable":
            rate = measured(name, "ours", batches[-1], "even", compiled=True, graph=False)["rate"]
            attainable(name, batches[-1], rate)
        elif chosen.what == "attention":
            attention(name, batches[-1])
        else:
            memory(name, batches)


if __name__ == "__main__":
    main()
