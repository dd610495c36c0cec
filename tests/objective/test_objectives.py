"""What the oracle does not cover: other losses, other targets, low resolution, MAE."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from flexpredict.build import build_objective, build_sampler
from flexpredict.config import settings_from
from flexpredict.model.covariances import Covariance, LowRank
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.lowres import low_resolution_loss, reduce_map
from flexpredict.objective.mae import Mae
from flexpredict.objective.views import View


def _build(**settings: object) -> tuple[IJepa | Mae, torch.Tensor, View]:
    small = {"model": "vit_nano", "patch_size": 4, "image_size": 32, "noise_std": 0.0}
    chosen = settings_from(small | settings)
    objective = build_objective(chosen)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    masks = build_sampler(chosen, objective.encoder.grid).sample(4, generator)
    return objective, images, View(masks, Draws())


def test_ijepa__mse_is_the_mean_square() -> None:
    objective, images, view = _build(loss="mse")
    assert isinstance(objective, IJepa)
    targets = objective.targets(images)
    true = torch.stack([t[m] for t, m in zip(targets, view.masks.targets, strict=True)])
    expected = (objective.predictions(images, view) - true).square().mean()
    torch.testing.assert_close(objective(images, [view]), expected)


@pytest.mark.parametrize("layers", [1, 3])
def test_ijepa__target_layers(layers: int) -> None:
    objective, images, _ = _build(target_layers=layers)
    assert isinstance(objective, IJepa)
    targets = objective.targets(images)
    assert not targets.requires_grad
    torch.testing.assert_close(
        targets.var(-1, unbiased=False), torch.ones(4, 64), rtol=1e-2, atol=1e-2
    )
    encoder = objective.target_encoder
    x, outputs = encoder.embed(images), []
    for block in encoder.blocks:
        x = block(x)
        outputs.append(x)
    if layers == 1:
        expected = F.layer_norm(encoder.norm(outputs[-1]), (64,))
    else:
        mean = torch.stack([F.layer_norm(o, (64,)) for o in outputs[-3:]]).mean(0)
        expected = F.layer_norm(mean, (64,))
    torch.testing.assert_close(targets, expected)


def test_ijepa__too_many_target_layers_refused() -> None:
    with pytest.raises(ValueError, match="target_layers=9, but the encoder has 4 layers"):
        _build(target_layers=9)


def test_ijepa__penalty_is_added() -> None:
    objective, images, view = _build(positions="sincos")
    penalised, _, _ = _build(positions="sincos", projection_l1=0.01)
    extra = 0.01 * objective.predictor.predictor_embed.weight.abs().sum()
    torch.testing.assert_close(penalised(images, [view]), objective(images, [view]) + extra)


def test_lowres__reduction_is_bilinear_or_max() -> None:
    tokens = torch.randn(2, 42, 5)
    grid = (6, 7)  # an odd edge is left out
    image = tokens.transpose(1, 2).reshape(2, 5, 6, 7)[..., :6]
    bilinear = F.interpolate(image, scale_factor=0.5, mode="bilinear")
    torch.testing.assert_close(
        reduce_map(tokens, grid, "bilinear"), bilinear.flatten(2).transpose(1, 2)
    )
    pooled = F.max_pool2d(image, 2)
    torch.testing.assert_close(reduce_map(tokens, grid, "max"), pooled.flatten(2).transpose(1, 2))


def test_lowres__only_cells_whose_children_are_all_targets_count() -> None:
    """Two images, one block each, against loops."""
    grid, dim = (4, 6), 3
    torch.manual_seed(0)
    predicted, targets = torch.randn(2, 1, 6, dim), torch.randn(2, 24, dim)
    # Rows 0-1, columns 1-3: one whole cell, at (0, 1). Rows 1-3, columns 4-5: one, at (1, 2).
    places = torch.tensor([[[1, 2, 3, 7, 8, 9]], [[10, 11, 16, 17, 22, 23]]])
    masks = Masks(torch.zeros(2, 1, dtype=torch.long), places)
    losses = []
    for image, cell in ((0, (2, 3, 8, 9)), (1, (16, 17, 22, 23))):
        where = [places[image, 0].tolist().index(place) for place in cell]
        low_predicted = predicted[image, 0, where].mean(0)
        low_target = targets[image, list(cell)].mean(0)
        losses.append((low_predicted - low_target).square().mean())

    def square(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).square()

    ours = low_resolution_loss(predicted, targets, masks, grid, "bilinear", square)
    torch.testing.assert_close(ours, torch.stack(losses).mean())


def test_lowres__without_a_single_cell_is_refused() -> None:
    # Two targets a block.
    settings = settings_from({"positions": "sincos", "low_resolution": "max"}, recipe="demo")
    with pytest.raises(ValueError, match=r"low_resolution=max has nothing to reduce.* 4×4 grid"):
        build_sampler(settings, (4, 4))
    assert build_sampler(settings.model_copy(update={"masking": "paper"}), (8, 8))


def test_lowres__adds_to_the_loss_and_trains() -> None:
    objective, images, view = _build(positions="sincos")
    for reduction in ("bilinear", "max"):
        both, _, _ = _build(positions="sincos", low_resolution=reduction)
        assert both(images, [view]) > objective(images, [view])


def test_mae__predicts_standardised_pixels() -> None:
    objective, images, view = _build(objective="mae", masking="random", positions="sincos")
    assert isinstance(objective, Mae)
    normal = objective.encoder.normalise(images)
    features = objective.encoder(images, view.masks.context)
    predicted = objective.predictor(features, view.masks)
    errors = []
    for image in range(4):
        for slot, place in enumerate(view.masks.targets[image, 0].tolist()):
            top, left = place // 8 * 4, place % 8 * 4
            patch = normal[image, :, top : top + 4, left : left + 4].flatten()
            true = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
            errors.append((predicted[image, 0, slot] - true).square().mean())
    torch.testing.assert_close(objective(images, [view]), torch.stack(errors).mean())
    assert objective.encoders["target"] is objective.encoder


def test_mae__stop_puts_noise_on_its_mask_tokens() -> None:
    objective, images, view = _build(
        objective="mae", masking="random", positions="stop", noise_std=0.5
    )
    losses = {objective(images, [view]).item() for _ in range(3)}
    assert len(losses) == 3
    objective(images, [view]).backward()
    assert objective.predictor.predictor_embed.weight.grad is not None


def test_build__variants_of_one_seed_share_their_weights() -> None:
    plain, _, _ = _build(positions="sincos", seed=3)
    common = dict(plain.named_parameters())
    variants: list[dict[str, object]] = [
        {"positions": "learned"},
        {"positions": "stop", "tied": False},
    ]
    variants += [{"positions": name} for name in get_args(Covariance) if name != "projected"]
    for variant in variants:
        other, _, _ = _build(**variant, noise_std=0.25, seed=3)
        for name, parameter in other.named_parameters():
            if name in common and parameter.requires_grad == common[name].requires_grad:
                assert torch.equal(parameter, common[name]), name
        assert set(common) <= set(dict(other.named_parameters()))
    different, _, _ = _build(positions="sincos", seed=4)
    assert not torch.equal(
        plain.encoder.blocks[0].attn.qkv.weight, different.encoder.blocks[0].attn.qkv.weight
    )


def test_build__directions_of_low_rank_noise_are_the_seeds() -> None:
    directions = []
    for seed in (3, 3, 4):
        built, _, _ = _build(positions="low-rank", noise_std=0.25, seed=seed)
        assert isinstance(built.predictor.positions.noise, LowRank)
        directions.append(built.predictor.positions.noise.directions)
    assert torch.equal(directions[0], directions[1])
    assert not torch.equal(directions[0], directions[2])
