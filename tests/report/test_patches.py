"""Heat maps, colours and attention, against direct definitions."""

import math

import numpy as np
import pytest
import torch

from flexpredict.build import build_objective
from flexpredict.config import Settings
from flexpredict.model.blocks import Block
from flexpredict.model.draws import Draws
from flexpredict.model.masking import EvenMasks, RandomMasks
from flexpredict.model.vit import create_encoder
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View
from flexpredict.report.analysis import patches
from flexpredict.report.analysis.masks import coverage


def test_heat_map__is_the_softmax_of_cosines_over_all_others() -> None:
    rng = np.random.default_rng(0)
    predicted, tokens = rng.normal(size=5), rng.normal(size=(6, 5))
    found = patches.heat_map(torch.from_numpy(predicted), torch.from_numpy(tokens), 2, 0.1)
    cosines = tokens @ predicted / (np.linalg.norm(tokens, axis=1) * np.linalg.norm(predicted))
    weights = np.exp(cosines / 0.1)
    weights[2] = 0
    np.testing.assert_allclose(found, weights / weights.sum())


def test_mass_and_distance__of_maps_with_one_hot_patch() -> None:
    grid, place = (4, 5), 6  # row 1, column 1
    hot = torch.eye(20)
    mass = patches.neighbourhood_mass(hot, place, grid)
    assert mass.nonzero().flatten().tolist() == [0, 1, 2, 5, 7, 10, 11, 12]
    distance = patches.mean_distance(hot, place, grid)
    assert distance[7] == 1
    assert distance[19] == pytest.approx(math.hypot(2, 3))


def test_locality__of_predictions_that_are_a_neighbours_features() -> None:
    """Each patch has features of its own; what is predicted are those of the patch to the right."""
    grid = (3, 3)
    tokens = torch.eye(9)[None]
    places = torch.tensor([[0, 4]])
    predicted = torch.eye(9)[[1, 5]][None, None].expand(2, -1, -1, -1)  # two draws, one image
    found = patches.locality(predicted, tokens, places, grid, 0.01)
    assert found.neighbourhood_mass == pytest.approx(1)
    assert found.mean_distance == pytest.approx(1)
    assert found.even_neighbourhood_mass == pytest.approx((3 / 8 + 8 / 8) / 2)
    corner = (1 + 2 + 1 + math.sqrt(2) + 2 * math.sqrt(5) + 2 + math.sqrt(8)) / 8
    middle = (4 + 4 * math.sqrt(2)) / 8
    assert found.even_mean_distance == pytest.approx((corner + middle) / 2)


@pytest.mark.parametrize("positions", ["sincos", "stop"])
def test_predictions__are_the_objectives_with_fresh_noise(positions: str) -> None:
    settings = Settings(
        model="vit_nano", patch_size=4, image_size=32, positions=positions, noise_std=2.0  # type: ignore[arg-type]
    )  # fmt: skip
    objective = build_objective(settings).eval()
    assert isinstance(objective, IJepa)
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    masks = EvenMasks((8, 8)).sample(3, torch.Generator().manual_seed(0))
    found = patches.predictions(objective, images, masks, 3)
    assert found.shape == (3, 3, masks.targets.shape[2], 64)
    torch.testing.assert_close(found, patches.predictions(objective, images, masks, 3))
    still = torch.allclose(found[0], found[1])
    assert still == (positions == "sincos")
    if still:
        with torch.no_grad():
            usual = objective.predictions(images, View(masks, Draws()))[:, 0]
        torch.testing.assert_close(found[0], usual, atol=1e-5, rtol=1e-4)


def test_colours__follow_the_axis_of_most_variance() -> None:
    along = torch.linspace(-1, 1, 24).view(2, 12, 1) * torch.tensor([0.6, 0.8, 0, 0])
    tokens = along + 1e-3 * torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0))
    colours, shares = patches.principal_colours(tokens)
    assert shares[0] > 0.999
    assert shares.sum() <= 1 + 1e-9
    red = colours[..., 0].flatten()
    assert (red.diff() >= 0).all()  # the largest weight is positive
    assert (colours >= 0).all()
    assert (colours <= 1).all()
    assert red[0] == 0
    assert red[-1] == 1


def test_attention__is_what_the_last_block_computes() -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32).eval()
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    weights = patches.attention(encoder, images)
    assert weights.shape == (2, 2, 16, 16)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 16))
    with torch.no_grad():
        x = encoder.embed(images)
        for block in encoder.blocks[:-1]:
            x = block(x)
        last = encoder.blocks[-1]
        assert isinstance(last, Block)
        normed = last.norm1(x)
        value = last.attn.qkv(normed)[..., 2 * 64 :].unflatten(-1, (2, 32)).transpose(1, 2)
        mixed = last.attn.proj((weights @ value).transpose(1, 2).flatten(2))
        torch.testing.assert_close(mixed, last.attn(normed), atol=1e-5, rtol=1e-4)


def test_attention_distance__of_looking_at_oneself_and_everywhere() -> None:
    itself = torch.eye(4).expand(3, 2, 4, 4)
    assert patches.attention_distance(itself, (2, 2)).tolist() == [0, 0]
    everywhere = torch.full((1, 1, 4, 4), 0.25)
    found = patches.attention_distance(everywhere, (2, 2))
    assert found.item() == pytest.approx((0 + 1 + 1 + math.sqrt(2)) / 4)


def test_coverage__adds_up_to_what_masks_hold() -> None:
    context, target = coverage(RandomMasks((4, 6)))
    assert context.mean() == pytest.approx(6 / 24)
    torch.testing.assert_close(context + target, torch.ones(4, 6).double())
    even = EvenMasks((8, 8))
    context, target = coverage(even, chunk=32)
    assert context.mean() == pytest.approx(even.context / 64)
    masks = even.sample(32, torch.Generator().manual_seed(0))
    counted = sum(len(set(row.flatten().tolist())) for row in masks.targets) / 32 / 64
    assert float(target.mean()) == pytest.approx(counted, abs=0.05)
