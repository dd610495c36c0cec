"""What becomes of the loss where a bias is added after its product was rounded, and not within it.

    python benchmarks/roundings.py [--model s16] [--steps 40] [--batch 8] [--seeds 0-3]
    python benchmarks/roundings.py --training --model b16 --steps 200

The reference adds biases within products and rounds the sum to bfloat16. Our kernels round products
and add biases in float32 (model/fused.py). Here, on a CPU, the forward is written out in float32
with either rounding put in by hand (attention within is float32), at the weights that some steps of
the reference in float32 come to: losses less that of float32, for all biases, those of one tower,
those of one kind, those of one kind in one tower, and all but these.

With `--training` steps that round as our kernels do, and as they did before one bias of the target
encoder was added within its product, go ways of their own beside the reference in bfloat16 and in
float32, as `step.py loss` has it on a GPU.
"""

import argparse
import itertools

import step_cases
import torch
import torch.nn.functional as F
from reference_step import PlainStep
from step_cases import setting, smooth
from torch import Tensor, nn

from flexpredict.model.blocks import Block, gather
from flexpredict.model.masking import Masks
from flexpredict.model.vit import Encoder, patchify
from flexpredict.objective.ijepa import IJepa

TOWERS, KINDS = ("target", "context", "predictor"), ("proj", "fc1", "fc2")
ALL = frozenset(itertools.product(TOWERS, KINDS))
CASES = {
    "within": frozenset(),
    "after": ALL,
    **{f"after, {name}": frozenset(one for one in ALL if name in one) for name in TOWERS + KINDS},
    "after, target's fc1": frozenset({("target", "fc1")}),
    "after, but target's fc1": ALL - {("target", "fc1")},
}
TESTED = 4  # batches


def narrow(x: Tensor) -> Tensor:
    return x.bfloat16().float()


class Forward:
    """The loss of a model in float32, or rounded; `after` says which biases come after that."""

    def __init__(self, model: IJepa, after: frozenset[tuple[str, str]] | None = None) -> None:
        self.model, self.after = model, after

    @torch.no_grad()
    def loss(self, images: Tensor, masks: Masks, noise: Tensor) -> float:
        model = self.model
        targets = self.encode(model.target_encoder, images, "target")
        targets = gather(F.layer_norm(targets, targets.shape[-1:]), masks.targets)
        features = self.encode(model.encoder, images, "context", masks.context)
        return float(F.smooth_l1_loss(self.predict(features, masks, noise), targets))

    def encode(
        self, encoder: Encoder, images: Tensor, tower: str, keep: Tensor | None = None
    ) -> Tensor:
        patches = patchify(encoder.normalise(images), encoder.patch_size)
        places = encoder.pos_embed.expand(len(patches), -1, -1)
        if keep is not None:
            patches, places = gather(patches, keep), gather(places, keep)
        embed = encoder.patch_embed.proj
        x = self.product(patches, embed.weight.flatten(1), embed.bias) + places
        return encoder.norm(self.blocks(encoder.blocks, x, tower))

    def predict(self, features: Tensor, masks: Masks, noise: Tensor) -> Tensor:
        predictor = self.model.predictor
        batch, count, targets = masks.targets.shape
        table = predictor.predictor_pos_embed.expand(batch, -1, -1)
        embed, project = predictor.predictor_embed, predictor.predictor_proj
        context = self.product(features, embed.weight, embed.bias) + gather(table, masks.context)
        masked = gather(table, masks.targets) + predictor.mask_token[:, None]
        masked = masked + self.product(noise, embed.weight, torch.zeros_like(embed.bias))
        x = torch.cat([context.repeat_interleave(count, dim=0), masked.flatten(0, 1)], dim=1)
        x = predictor.predictor_norm(self.blocks(predictor.predictor_blocks, x, "predictor"))
        x = self.product(x[:, -targets:], project.weight, project.bias)
        return x.unflatten(0, (batch, count))

    def blocks(self, blocks: nn.ModuleList, x: Tensor, tower: str) -> Tensor:
        for block in blocks:
            assert isinstance(block, Block)
            attention, mlp = block.attn, block.mlp
            qkv = self.product(block.norm1(x), attention.qkv.weight, attention.qkv.bias)
            heads = qkv.unflatten(-1, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = self.rounded(F.scaled_dot_product_attention(*heads)).transpose(1, 2).flatten(2)
            x = x + self.product(mixed, *self._of(attention.proj), (tower, "proj"))
            hidden = F.gelu(self.product(block.norm2(x), *self._of(mlp.fc1), (tower, "fc1")))
            x = x + self.product(self.rounded(hidden), *self._of(mlp.fc2), (tower, "fc2"))
        return x

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor, place: tuple[str, str] | None = None
    ) -> Tensor:
        if self.after is None:
            return F.linear(x, weight, bias)
        found = F.linear(narrow(x), narrow(weight))
        return narrow(found) + bias if place in self.after else narrow(found + narrow(bias))

    def rounded(self, x: Tensor) -> Tensor:
        return x if self.after is None else narrow(x)

    @staticmethod
    def _of(layer: nn.Linear) -> tuple[Tensor, Tensor]:
        return layer.weight, layer.bias


class KernelStep(PlainStep):
    """A plain step with biases where our kernels add them: in float32, after a rounded product."""

    within = True  # GELU's, where no gradient is asked for

    def blocks(self, blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for block in blocks:
            assert isinstance(block, Block)
            x = x + _biased_after(self.mix(block, block.norm1(x)), block.attn.proj)
            normed, fc1 = block.norm2(x), block.mlp.fc1
            whole = self.within and not torch.is_grad_enabled()
            hidden = fc1(normed).float() if whole else _biased_after(normed, fc1)
            x = x + _biased_after(F.gelu(hidden).bfloat16(), block.mlp.fc2)
        return x


class EarlierStep(KernelStep):
    """As it was until 19 November 2026."""

    within = False


def _biased_after(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x, layer.weight).float() + layer.bias


def train(name: str, batch: int, steps: int, seed: int) -> None:
    """Losses of four ways from the same weights, and how far they are from each other."""
    kinds = {
        "float32": (PlainStep, False, torch.float32),
        "bfloat16": (PlainStep, False, torch.bfloat16),
        "ours": (KernelStep, True, torch.bfloat16),
        "earlier": (EarlierStep, True, torch.bfloat16),
    }
    found = {}
    for kind, (way, lean, dtype) in kinds.items():
        objective, settings = setting(name, seed=seed)
        step = way(objective, lean=lean, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        losses = []
        for number in range(steps):
            images, masks, noise = smooth(
                settings, objective, batch, generator, seed * steps + number
            )
            losses.append(float(step(images, masks, noise * settings.noise_std)))
        found[kind] = torch.tensor(losses)
        print(f"{name}, seed {seed}, {kind}: loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    pairs = [("bfloat16", "float32"), ("ours", "bfloat16"), ("ours", "float32")]
    for one, other in (*pairs, ("earlier", "bfloat16")):
        away = found[one] - found[other]
        print(
            f"  {one} to {other}: mean {away.abs().mean():.2e}, largest {away.abs().max():.2e}, "
            f"signed {away.mean():+.2e}",
            flush=True,
        )


def compare(name: str, batch: int, steps: int, seed: int) -> None:
    objective, settings = setting(name, seed=seed)
    reference = PlainStep(objective, lean=False, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)

    def given(number: int) -> tuple[Tensor, Masks, Tensor]:
        images, masks, noise = smooth(settings, objective, batch, generator, 1000 * seed + number)
        return images, masks, noise * settings.noise_std

    for number in range(steps):
        loss = reference(*given(number))
    exact = Forward(reference.model)
    ways = {case: Forward(reference.model, after) for case, after in CASES.items()}
    away = dict.fromkeys(ways, 0.0)
    for number in range(steps, steps + TESTED):
        some = given(number)
        right = exact.loss(*some)
        for case, way in ways.items():
            away[case] += (way.loss(*some) - right) / TESTED
    print(f"{name}, seed {seed}, {steps} steps of {batch}, loss {loss:.4f}; away from float32:")
    for case, value in away.items():
        print(f"  {case:24} {value:+.2e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="s16")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--training", action="store_true", help="losses on the way")
    chosen = parser.parse_args()
    step_cases.CUDA = torch.device("cpu")
    first, _, last = chosen.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        work = train if chosen.training else compare
        work(chosen.model, chosen.batch, chosen.steps, seed)


if __name__ == "__main__":
    main()
