"""Every fast path equals the page that an expert reads first, to 1e-10 in float64."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flexpredict.model.draws import ChunkPart, Draws
from flexpredict.model.masking import EvenMasks, Masks, MaskSampler, PaperMasks, RandomMasks
from flexpredict.model.positions import StochasticPositions
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder
from flexpredict.objective import oracle
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View

GRID, PATCH, HEADS, STD = (8, 8), 2, 2, 0.25
SAMPLERS: dict[str, MaskSampler] = {
    "paper": PaperMasks(GRID),
    "even": EvenMasks(GRID),
    "random": RandomMasks(GRID),
}


def _objective(form: str, noise_std: float) -> IJepa:
    torch.manual_seed(0)
    encoder = Encoder(dim=8, depth=2, heads=HEADS, patch_size=PATCH, image_size=16)
    predictor = Predictor(
        encoder_dim=8, output_dim=8, dim=4, depth=2, heads=HEADS, grid=GRID,
        positions=StochasticPositions(8, 4, noise_std, form=form),  # type: ignore[arg-type]
    )  # fmt: skip
    objective = IJepa(encoder, predictor).double()
    for parameter in objective.parameters():  # away from the initial values, each of its own
        if parameter.requires_grad or parameter.ndim < 3:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return objective


def _draws(count: int) -> Draws:
    generator = torch.Generator().manual_seed(9)
    return Draws([ChunkPart(generator, count, 0, count)])


def _oracle(objective: IJepa, images: Tensor, masks: Sequence[Masks], form: str) -> Tensor:
    """The oracle on the objective's own weights, so that gradients land on them."""

    def named(module: torch.nn.Module) -> dict[str, Tensor]:
        return dict(module.named_parameters())

    std = objective.predictor.positions.noise_std
    context, targets, noise = [], [], []
    for part in masks:
        draw = STD * _draws(len(part)).normal(*part.targets.shape, 8, like=images)
        if not std:
            draw = torch.zeros_like(draw)
        context += part.context.tolist()
        targets += part.targets.tolist()
        noise += [[list(block) for block in image] for image in draw]
    return oracle.loss(
        list(images), context, targets, noise,
        named(objective.encoder), named(objective.target_encoder), named(objective.predictor),
        patch_size=PATCH, encoder_heads=HEADS, predictor_heads=HEADS,
        form=form if std else "paper",
    )  # fmt: skip


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("form", "noise_std"), [("paper", STD), ("released", STD), ("paper", 0.0)])
def test_ijepa__loss_and_gradients_equal_the_oracle(
    sampler: str, form: str, noise_std: float
) -> None:
    objective = _objective(form, noise_std)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    masks = SAMPLERS[sampler].sample(2, torch.Generator().manual_seed(1))

    fast = objective(images, [View(masks, _draws(2))])
    fast.backward()
    gradients = {n: p.grad for n, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    slow = _oracle(objective, images, [masks], form)
    slow.backward()  # type: ignore[no-untyped-call]

    assert abs(fast.item() - slow.item()) < 1e-10
    for name, parameter in objective.named_parameters():
        if parameter.grad is None:
            assert name not in gradients
        else:
            assert (gradients[name] - parameter.grad).abs().max() < 1e-10, name
    expected = {"predictor.predictor_embed.weight", "predictor.predictor_embed.bias",
                "encoder.patch_embed.proj.weight"}  # fmt: skip
    if form == "paper":
        expected.add("predictor.mask_token")
    assert expected <= set(gradients)
    assert ("predictor.mask_token" in gradients) == (form == "paper")


def test_ijepa__several_views_equal_the_mean_over_images() -> None:
    """Two chunks of unlike lengths: the batch's loss is the mean of its images' losses."""
    objective = _objective("paper", STD)
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    sampler = PaperMasks(GRID)
    masks = [sampler.sample(2, torch.Generator().manual_seed(s)) for s in range(20)]
    first = masks[0]
    second = next(m[:1] for m in masks if m.targets.shape[-1] != first.targets.shape[-1])
    fast = objective(images, [View(first, _draws(2)), View(second, _draws(1))])
    slow = [
        _oracle(objective, images[:2], [first], "paper"),
        _oracle(objective, images[2:], [second], "paper"),
    ]
    assert abs(fast.item() - (2 * slow[0].item() + slow[1].item()) / 3) < 1e-10


def test_update_target__equals_the_oracle() -> None:
    objective = _objective("paper", STD)
    before = {n: p.clone() for n, p in objective.target_encoder.named_parameters()}
    expected = oracle.update_target(before, dict(objective.encoder.named_parameters()), 0.97)
    objective.update_target(0.97)
    for name, parameter in objective.target_encoder.named_parameters():
        assert (parameter - expected[name]).abs().max() < 1e-14
