"""Plain pretraining steps to compare with, written from the description in measured.md.

`reference`: attention with a materialised softmax, bf16 autocast with a gradient scaler, AdamW in
its default form, a Python loop over parameters for the moving average, the norm of every weight's
gradient read back, all patches embedded before the context is gathered, the loss read back.
`sketch`: the same model with SDPA, only kept patches embedded, fused AdamW, foreach moving average,
nothing read back.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.engine import optim, precision
from flexpredict.model.blocks import Block, gather
from flexpredict.model.masking import Masks
from flexpredict.model.vit import Encoder, patchify
from flexpredict.objective.ijepa import IJepa


class PlainStep:
    """A step over copies of an objective's weights, forward and all written out here."""

    def __init__(self, objective: IJepa, *, lean: bool, dtype: torch.dtype) -> None:
        self.lean, self.dtype = lean, dtype
        self.model = copy.deepcopy(objective)
        self.device = self.model.encoder.pos_embed.device
        groups = optim.parameter_groups([self.model.encoder, self.model.predictor])
        for group in groups:
            group["weight_decay"] = 0.04 if group.pop("decay") else 0.0
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True if lean else None)
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=not lean and dtype != torch.float32
        )

    def __call__(self, images: Tensor, masks: Masks, noise: Tensor | None) -> Tensor | float:
        with precision.autocast(self.device, self.dtype):
            loss = self.loss(images, masks, noise)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not self.lean:
            for parameter in self.model.parameters():
                if parameter.grad is not None and parameter.ndim > 1:
                    float(torch.norm(parameter.grad))
        self.optimizer.zero_grad()
        target, source = self.model.target_encoder.parameters(), self.model.encoder.parameters()
        with torch.no_grad():
            if self.lean:
                torch._foreach_lerp_(list(target), list(source), 1 - 0.996)
            else:
                for old, new in zip(target, source, strict=True):
                    old.data.mul_(0.996).add_((1.0 - 0.996) * new.detach().data)
        return loss.detach() if self.lean else float(loss.detach())

    def loss(self, images: Tensor, masks: Masks, noise: Tensor | None) -> Tensor:
        model = self.model
        with torch.no_grad():
            tokens = self.encode(model.target_encoder, images)
            targets = F.layer_norm(tokens, tokens.shape[-1:])
            targets = gather(targets, masks.targets)
        features = self.encode(model.encoder, images, masks.context)
        predicted = self.predict(features, masks, noise)
        return F.smooth_l1_loss(predicted, targets)

    def encode(self, encoder: Encoder, images: Tensor, keep: Tensor | None = None) -> Tensor:
        pixels = encoder.normalise(images)
        if self.lean:
            patches = patchify(pixels, encoder.patch_size)
            patches = patches if keep is None else gather(patches, keep)
            x = encoder.patch_embed(patches)
            position = encoder.pos_embed.expand(len(x), -1, -1)
            x = x + (position if keep is None else gather(position, keep))
        else:
            x = encoder.patch_embed.proj(pixels).flatten(2).transpose(1, 2) + encoder.pos_embed
            x = x if keep is None else gather(x, keep)
        return encoder.norm(self.blocks(encoder.blocks, x))

    def predict(self, features: Tensor, masks: Masks, noise: Tensor | None) -> Tensor:
        predictor = self.model.predictor
        batch, count, targets = masks.targets.shape
        table = predictor.predictor_pos_embed.expand(batch, -1, -1)
        context = predictor.predictor_embed(features) + gather(table, masks.context)
        masked = gather(table, masks.targets) + predictor.mask_token[:, None]
        if noise is not None:
            masked = masked + F.linear(noise, predictor.predictor_embed.weight)
        context = context.repeat_interleave(count, dim=0)
        x = torch.cat([context, masked.flatten(0, 1)], dim=1)
        x = predictor.predictor_norm(self.blocks(predictor.predictor_blocks, x))
        return predictor.predictor_proj(x[:, -targets:]).unflatten(0, (batch, count))

    def blocks(self, blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for block in blocks:
            assert isinstance(block, Block)
            x = x + block.attn.proj(self.mix(block, block.norm1(x)))
            hidden = F.gelu(block.mlp.fc1(block.norm2(x)))
            x = x + block.mlp.fc2(hidden)
        return x

    def mix(self, block: Block, x: Tensor) -> Tensor:
        """Attention, without its projection."""
        batch, tokens, dim = x.shape
        heads = block.attn.heads
        qkv = block.attn.qkv(x).reshape(batch, tokens, 3, heads, dim // heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if self.lean:
            out = F.scaled_dot_product_attention(query, key, value)
        else:
            scores = (query @ key.transpose(-2, -1)) / math.sqrt(dim // heads)
            out = scores.softmax(dim=-1) @ value
        return out.transpose(1, 2).reshape(batch, tokens, dim)


@torch.no_grad()
def difference_to_transformers(encoder: Encoder, reference: PlainStep) -> float:
    """The largest difference of tokens to transformers' IJepaModel with the same weights, float32.

    Both are also compared with our own encoder, so that neither can be wrong alone.
    """
    from transformers import IJepaConfig, IJepaModel  # an outside implementation, not ours

    config = IJepaConfig(
        hidden_size=encoder.dim,
        num_hidden_layers=len(encoder.blocks),
        num_attention_heads=encoder.blocks[0].attn.heads,  # type: ignore[union-attr]
        intermediate_size=encoder.blocks[0].mlp.fc1.out_features,  # type: ignore[union-attr]
        image_size=encoder.grid[0] * encoder.patch_size,
        patch_size=encoder.patch_size,
        layer_norm_eps=1e-6,
        hidden_act="gelu",
    )
    with encoder.pos_embed.device:  # drawing a ViT-H on a CPU takes half a minute
        theirs = IJepaModel(config, add_pooling_layer=False).eval()
    theirs.load_state_dict(_renamed(encoder, list(theirs.state_dict())), strict=True)
    images = torch.randn(2, 3, config.image_size, config.image_size, device=encoder.mean.device)
    expected = theirs(pixel_values=images).last_hidden_state
    found = [reference.encode(encoder, images), encoder(images)]
    return max(float((expected - tokens).abs().max()) for tokens in found)


def _renamed(encoder: Encoder, names: list[str]) -> dict[str, Tensor]:
    """Our weights under the names that transformers uses, whichever of its versions it is."""
    ours = encoder.state_dict()
    plain = {
        "patch_embeddings.projection": "patch_embed.proj",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "attention.output.dense": "attn.proj",
        "attention.o_proj": "attn.proj",
        "intermediate.dense": "mlp.fc1",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
        "output.dense": "mlp.fc2",
    }
    thirds = {"query": 0, "key": 1, "value": 2, "q_proj": 0, "k_proj": 1, "v_proj": 2}
    found = {}
    for name in names:
        kind = name.rsplit(".", 1)[-1]
        if name.endswith("position_embeddings"):
            found[name] = ours["pos_embed"]
            continue
        layer = next((part for part in name.split(".") if part.isdigit()), None)
        start = "" if layer is None else f"blocks.{layer}."
        part = next((n for n in thirds if f".{n}." in name), None)
        if part is not None:
            whole = ours[f"{start}attn.qkv.{kind}"]
            found[name] = whole.chunk(3)[thirds[part]]
            continue
        match = next((mine for theirs, mine in plain.items() if theirs in name), "norm")
        found[name] = ours[f"{start}{match}.{kind}"]
    return found
