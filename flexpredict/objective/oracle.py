"""Algorithm 1 of the paper, line by line: the page to read first.

One image at a time, one target block at a time, one token at a time; float64; no batching. It is
far too slow to train with. It exists to be read, and to be equalled: the tests hold every fast
path of the package, its loss and its gradients, to this page.

Weights are mappings from the names of the released checkpoints to tensors. A token is a vector.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Tokens = list[Tensor]


def loss(
    images: Sequence[Tensor],  # each (channels, height, width), normalised
    context: Sequence[Sequence[int]],  # B_x of each image: patch indices, row-major
    targets: Sequence[Sequence[Sequence[int]]],  # B_y of each image and block
    noise: Sequence[Sequence[Sequence[Tensor]]],  # n_j ~ N(0, noise_std² I) of each target token
    encoder: Weights,
    target_encoder: Weights,
    predictor: Weights,
    *,
    patch_size: int,
    encoder_heads: int,
    predictor_heads: int,
    form: str = "paper",
) -> Tensor:
    """The loss of a batch: smooth-L1 between predicted and target features, averaged."""
    errors = []
    for image, B_x, blocks, image_noise in zip(images, context, targets, noise, strict=True):
        # s_x: the context encoder sees the context patches and nothing else.
        s_x = encode(image, B_x, encoder, patch_size, encoder_heads)
        # s_y: the target encoder (a moving average, no gradient) sees the whole image.
        with torch.no_grad():
            everything = range(image.shape[1] * image.shape[2] // patch_size**2)
            s_all = encode(image, everything, target_encoder, patch_size, encoder_heads)
            s_all = [standardise(s, eps=1e-5) for s in s_all]
        for B_y, block_noise in zip(blocks, image_noise, strict=True):  # blocks are apart
            psi = predictor["predictor_pos_embed"][0]
            A, b = predictor["predictor_embed.weight"], predictor["predictor_embed.bias"]
            m_tilde = predictor["mask_token"][0, 0]
            # c_i = A s_i + b + ψ_i for every context patch i
            c = [A @ s_i + b + psi[i] for i, s_i in zip(B_x, s_x, strict=True)]
            # m_j = A n_j + ψ_j + m̃ for every masked patch j; the released code has b for m̃
            shared = m_tilde if form == "paper" else b
            m = [A @ n_j + psi[j] + shared for j, n_j in zip(B_y, block_noise, strict=True)]
            # ŝ_y = g(c, m)
            for j, s_hat_j in zip(B_y, predict(c, m, predictor, predictor_heads), strict=True):
                for predicted, true in zip(s_hat_j, s_all[j], strict=True):
                    errors.append(smooth_l1(predicted - true))
    return torch.stack(errors).mean()


def update_target(target_encoder: Weights, encoder: Weights, momentum: float) -> dict[str, Tensor]:
    """θ̄ ← momentum · θ̄ + (1 − momentum) · θ, after the optimiser's step."""
    return {
        name: momentum * old + (1 - momentum) * encoder[name].detach()
        for name, old in target_encoder.items()
    }


def encode(
    image: Tensor, keep: Sequence[int], weights: Weights, patch_size: int, heads: int
) -> Tokens:
    """Patches at `keep` through the encoder, after its final norm."""
    columns = image.shape[2] // patch_size
    kernel, bias = weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"]
    tokens = []
    for i in keep:
        top, left = i // columns * patch_size, i % columns * patch_size
        patch = image[:, top : top + patch_size, left : left + patch_size]
        tokens.append((kernel * patch).sum(dim=(1, 2, 3)) + bias + weights["pos_embed"][0, i])
    tokens = transform(tokens, weights, "blocks", heads)
    return [layer_norm(x, weights, "norm") for x in tokens]


def predict(c: Tokens, m: Tokens, weights: Weights, heads: int) -> Tokens:
    """Context and masked tokens through the predictor; only the masked places come out."""
    tokens = transform(c + m, weights, "predictor_blocks", heads)[len(c) :]
    return [
        linear(layer_norm(x, weights, "predictor_norm"), weights, "predictor_proj") for x in tokens
    ]


def transform(tokens: Tokens, weights: Weights, blocks: str, heads: int) -> Tokens:
    """Pre-norm transformer blocks: attention, then an MLP with GELU, each added to its input."""
    depth = 0
    while f"{blocks}.{depth}.norm1.weight" in weights:
        name = f"{blocks}.{depth}"
        normed = [layer_norm(x, weights, f"{name}.norm1") for x in tokens]
        mixed = attend(normed, weights, f"{name}.attn", heads)
        tokens = [x + y for x, y in zip(tokens, mixed, strict=True)]
        normed = [layer_norm(x, weights, f"{name}.norm2") for x in tokens]
        hidden = [gelu(linear(x, weights, f"{name}.mlp.fc1")) for x in normed]
        tokens = [
            x + linear(h, weights, f"{name}.mlp.fc2") for x, h in zip(tokens, hidden, strict=True)
        ]
        depth += 1
    return tokens


def attend(tokens: Tokens, weights: Weights, name: str, heads: int) -> Tokens:
    """Multi-head self-attention, one head and one query at a time."""
    dim = len(tokens[0])
    size = dim // heads
    qkv = [linear(x, weights, f"{name}.qkv") for x in tokens]
    mixed: list[list[Tensor]] = [[] for _ in tokens]
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        queries = [x[:dim][part] for x in qkv]
        keys = [x[dim : 2 * dim][part] for x in qkv]
        values = [x[2 * dim :][part] for x in qkv]
        for out, query in zip(mixed, queries, strict=True):
            score = torch.stack([query @ key for key in keys]) / size**0.5
            share = score.exp() / score.exp().sum()
            weighted = [a * value for a, value in zip(share, values, strict=True)]
            out.append(torch.stack(weighted).sum(dim=0))
    return [linear(torch.cat(out), weights, f"{name}.proj") for out in mixed]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def layer_norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    return standardise(x, eps=1e-6) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def standardise(x: Tensor, eps: float) -> Tensor:
    """LayerNorm without scale and shift."""
    centred = x - x.mean()
    return centred / (centred.square().mean() + eps).sqrt()


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def smooth_l1(error: Tensor) -> Tensor:
    size = error.abs()
    return 0.5 * error**2 if size < 1 else size - 0.5
