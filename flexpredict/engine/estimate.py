"""How much a training step computes and holds, from the shapes of its parts.

C context patches, T target patches in each of K blocks, D the encoder's width, P the predictor's.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from flexpredict.model.blocks import Block
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder

# What autograd keeps of a block, in numbers of the compute format (2 bytes in bfloat16) and in
# float32 numbers, per token and unit of width. The residual stream is float32 always. Checked on a
# CPU by counting what autograd saves, and on an H200 by the peaks in tests/test_bench.py: compiled
# or not, it is 36 · D bytes per token in half precision and 64 · D in float32.
_OF_ALL = (3, 1)  # the first norm's output, keys and values; the stream that comes in
_OF_ASKED = (3, 1)  # queries, what attention mixed, the second norm's output; the stream between
_OF_HIDDEN = 2  # before and after GELU, per hidden unit
# Checkpointed, a block keeps what comes in: the float32 stream and, but for the first block, the
# branch that is still to be added to it.
# Per weight: itself and AdamW's two moments; its gradient; the target encoder's copy.
_STATE, _GRADIENT, _FOLLOWING = 12, 4, 4

# The share of the rate of large matrix products that whole steps reach, by which time is foretold:
# it grows with the encoder's width up to a limit. On an H200 (benchmarks/history.md) compiled steps
# of widths 192, 384, 768 and 1,024 reach 0.13, 0.27, 0.46 and 0.52; on one CPU core (2026-11-15,
# torch 2.13, float32) steps of widths 64, 192 and 384 reach 0.16 to 0.24, 0.5 and 0.6.
_GPU_COMPILED, _GPU_EAGER, _CPU = (1500, 0.5), (2800, 0.4), (350, 0.6)  # share: width / a, up to b


class Stack(NamedTuple):
    """A stack of blocks."""

    dim: int
    depth: int
    hidden: int


class Lengths(NamedTuple):
    """How many patches the masks of a chunk of images have."""

    context: int
    targets: int


@dataclass(frozen=True, slots=True)
class Workload:
    """All that a step's products and memory depend on, beside the size of the batch."""

    encoder: Stack
    predictor: Stack
    patches: int
    pixels: int  # of a patch, all channels
    output: int  # numbers predicted for a patch
    blocks: int
    lengths: Sequence[Lengths]  # of some chunks, or the one that all chunks have
    chunk_size: int
    noisy_targets: bool
    noisy_context: bool
    noise_dim: int
    noise_projected: bool
    trained: int  # weights
    followed: int  # weights of the target encoder; 0 where there is none
    # Whether the target encoder's last block is computed for targets alone.
    asked_only: bool


def workload(
    encoder: Encoder,
    predictor: Predictor,
    *,
    blocks: int,
    lengths: Sequence[Lengths],
    chunk_size: int,
    followed: int,
    asked_only: bool,
) -> Workload:
    """What the modules say by themselves, and what only the caller knows."""
    positions, noise = predictor.positions, predictor.positions.noise
    trained = [p for m in (encoder, predictor) for p in m.parameters() if p.requires_grad]
    return Workload(
        encoder=_stack(encoder.blocks),
        predictor=_stack(predictor.predictor_blocks),
        patches=encoder.grid[0] * encoder.grid[1],
        pixels=encoder.in_channels * encoder.patch_size**2,
        output=predictor.predictor_proj.out_features,
        blocks=blocks,
        lengths=lengths,
        chunk_size=chunk_size,
        noisy_targets=positions.noise_on_masked,
        noisy_context=positions.noise_on_context,
        noise_dim=noise.width if noise is not None else 0,
        noise_projected=noise is not None and noise.product,
        trained=sum(p.numel() for p in trained),
        followed=followed,
        asked_only=asked_only,
    )


class Flops(NamedTuple):
    """Floating-point operations of matrix products for one image, a product of m×n×k as 2mnk."""

    target_encoder: float
    forward: float  # of context encoder and predictor
    backward: float

    @property
    def total(self) -> float:
        return sum(self)


def flops_per_image(work: Workload) -> Flops:
    """The mean over masks. What checkpointing computes twice counts once."""
    each = [_flops(work, lengths) for lengths in work.lengths]
    return Flops(*(statistics.fmean(part) for part in zip(*each, strict=True)))


def estimate_memory(
    work: Workload,
    images: int,
    dtype: torch.dtype,
    *,
    checkpointing: bool = False,
    gradients_stay: bool = False,
    world: int = 1,
) -> int:
    """Bytes at the peak of a step that computes so many images at once on one device.

    gradients_stay: through the forward, as with micro-batches and CUDA graphs.
    """
    state = _STATE * work.trained + _FOLLOWING * work.followed
    state += images * work.patches * work.pixels  # uint8
    if world > 1:
        state += _GRADIENT * work.trained  # buckets in which they travel
    gradients = _GRADIENT * work.trained
    # Where masks have various lengths, a batch may be of the longest.
    each = sorted(kept_bytes(work, one, dtype, checkpointing) for one in work.lengths)
    kept = images * statistics.fmean(each[-math.ceil(images / work.chunk_size) :])
    if dtype.itemsize < 4:
        kept += dtype.itemsize * work.trained  # weights in the compute format, for the backward
    if gradients_stay:
        state, gradients = state + gradients, 0
    targets = images * _kept(work.encoder, work.patches, work.patches, dtype) * bool(work.followed)
    return round(state + max(kept, gradients, targets))


def kept_bytes(
    work: Workload, lengths: Lengths, dtype: torch.dtype, checkpointing: bool = False
) -> float:
    """Activations of an image that are kept for the backward."""
    size, (context, targets) = dtype.itemsize, lengths
    encoder, predictor, blocks = work.encoder, work.predictor, work.blocks
    asked, tokens = blocks * targets, blocks * (context + targets)
    noise = asked * work.noisy_targets + context * work.noisy_context
    # Pixels of patches; the final norm's input and output; predictions, truth, noise.
    ends = context * (work.pixels * size + encoder.dim * (4 + size))
    ends += asked * (work.output * 8 + predictor.dim * (4 + size)) + noise * work.noise_dim * size
    if checkpointing:  # and all of one block, when its backward comes
        stream = encoder.dim * encoder.depth * context + predictor.dim * predictor.depth * tokens
        first = encoder.dim * context + predictor.dim * tokens
        one = max(_kept(encoder, context, context, dtype), _kept(predictor, tokens, tokens, dtype))
        return ends + 4 * stream + size * (stream - first) + one
    ends += _kept(predictor, tokens, asked, dtype)  # the last block
    inner = (predictor.depth - 1) * _kept(predictor, tokens, tokens, dtype)
    return ends + encoder.depth * _kept(encoder, context, context, dtype) + inner


def estimate_seconds(
    flops: Flops, images: float, rate: float, share: float, *, checkpointing: bool = False
) -> float:
    """rate: of large matrix products, per second; share: of it that is reached."""
    again = flops.forward if checkpointing else 0.0
    return images * (flops.total + again) / (rate * share)


def usual_share(device: torch.device, compiled: bool, dim: int) -> float:
    if device.type == "cuda":
        width, most = _GPU_COMPILED if compiled else _GPU_EAGER
    else:
        width, most = _CPU
    return min(most, dim / width)


def matmul_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.15) -> float:
    """Floating-point operations a second of large matrix products: the median of a few."""
    side = 768 if device.type != "cuda" else 8192 if dtype.itemsize < 4 else 4096
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        wait_for(device)
        taken.append(time.perf_counter() - start)
    return 2 * side**3 / statistics.median(taken[1:])  # the first one loads what it needs


def wait_for(device: torch.device) -> None:
    """Until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _stack(blocks: nn.ModuleList) -> Stack:
    first = blocks[0]
    assert isinstance(first, Block)
    return Stack(first.attn.proj.in_features, len(blocks), first.mlp.fc1.out_features)


def _kept(stack: Stack, tokens: int, asked: int, dtype: torch.dtype) -> int:
    """Of one block that is computed for some of its tokens, bytes."""
    everywhere = _OF_ALL[0] * dtype.itemsize + _OF_ALL[1] * 4
    there = _OF_ASKED[0] * dtype.itemsize + _OF_ASKED[1] * 4
    hidden = _OF_HIDDEN * dtype.itemsize * stack.hidden
    return stack.dim * (everywhere * tokens + there * asked) + hidden * asked


def _flops(work: Workload, lengths: Lengths) -> Flops:
    (context, targets), blocks = lengths, work.blocks
    dim, narrow = work.encoder.dim, work.predictor.dim
    asked = blocks * targets
    wanted = asked if work.asked_only else work.patches
    target = 2 * work.patches * work.pixels * dim + _forward(work.encoder, work.patches, wanted)
    embed = 2 * context * work.pixels * dim
    noisy = asked * work.noisy_targets + context * work.noisy_context
    noise = 2 * noisy * work.noise_dim * narrow * work.noise_projected
    inner = _forward(work.encoder, context, context) + 2 * context * dim * narrow
    inner += blocks * _forward(work.predictor, context + targets, targets)
    inner += 2 * asked * narrow * work.output
    # Pixels and noise need no gradient: one product of the backward instead of two.
    return Flops(target * bool(work.followed), embed + noise + inner, embed + noise + 2 * inner)


def _forward(stack: Stack, tokens: int, asked: int) -> float:
    """All blocks, the last one for some tokens only; they still attend to all."""
    return (stack.depth - 1) * _block(stack, tokens, tokens) + _block(stack, tokens, asked)


def _block(stack: Stack, tokens: int, asked: int) -> float:
    dim = stack.dim
    projections = 2 * dim**2 * (2 * tokens + 2 * asked)  # keys and values; queries and output
    return projections + 4 * asked * tokens * dim + 4 * asked * dim * stack.hidden
