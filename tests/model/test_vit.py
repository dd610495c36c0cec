from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flexpredict.build import build_objective
from flexpredict.config import settings_from
from flexpredict.model.blocks import Block
from flexpredict.model.vit import Encoder, create_encoder, patchify

COUNTS = {
    "paper/stop-vit-b16": (85_646_592, 11_238_912),
    "paper/stop-vit-l16": (303_098_880, 22_082_560),
    "paper/stop-vit-h14": (630_434_560, 22_279_424),
}


@pytest.mark.parametrize("recipe", COUNTS)
def test_parameters__published_counts(recipe: str) -> None:
    with torch.device("meta"):
        objective = build_objective(settings_from({}, recipe=recipe))
    counts = tuple(
        sum(p.numel() for p in module.parameters() if p.requires_grad)
        for module in (objective.encoder, objective.predictor)
    )
    assert counts == COUNTS[recipe]


def _small(**options: object) -> Encoder:
    torch.manual_seed(0)
    return Encoder(dim=16, depth=3, heads=2, patch_size=4, **({"image_size": 16} | options))  # type: ignore[arg-type]


def test_patch_embedding__equals_the_convolution() -> None:
    encoder, images = _small(), torch.randn(2, 3, 16, 16)
    ours = encoder.patch_embed(patchify(images, 4))
    theirs = encoder.patch_embed.proj(images).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ours, theirs)


def test_encoder__kept_patches_carry_their_true_position() -> None:
    """With no attention between them, kept tokens equal those of the whole image."""
    encoder, images = _small(), torch.randn(2, 3, 16, 16)
    keep = torch.tensor([[3, 9, 12], [0, 5, 15]])
    whole = encoder.embed(images)
    torch.testing.assert_close(
        encoder.embed(images, keep), torch.stack([whole[0, keep[0]], whole[1, keep[1]]])
    )


def test_encoder__context_does_not_depend_on_hidden_pixels() -> None:
    encoder, images = _small(), torch.randn(1, 3, 16, 16)
    keep = torch.tensor([[0, 1, 2, 3]])  # the first row of patches
    other = images.clone()
    other[:, :, 4:] += 1
    torch.testing.assert_close(encoder(images, keep), encoder(other, keep), rtol=0, atol=0)


def test_features__uint8_is_normalised_and_floats_are_taken_as_they_are() -> None:
    encoder = _small(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    normalised = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(encoder.features(images), encoder.features(normalised))


def test_features__layers() -> None:
    encoder, images = _small(), torch.randn(2, 3, 16, 16)
    tokens = encoder(images)
    torch.testing.assert_close(encoder.features(images), tokens.mean(1))
    maps = encoder.feature_maps(images, layers=3)
    assert [tuple(x.shape) for x in maps] == [(2, 16, 4, 4)] * 3
    torch.testing.assert_close(maps[-1].flatten(2).transpose(1, 2), tokens)
    first = encoder.norm(encoder.blocks[0](encoder.embed(images)))
    torch.testing.assert_close(maps[0].flatten(2).transpose(1, 2), first)
    assert encoder.features(images, layers=3).shape == (2, 48)
    with pytest.raises(ValueError, match="has 3 layers: cannot give 4"):
        encoder.features(images, layers=4)


@pytest.mark.parametrize("resize", ["recompute", "interpolate"])
def test_positions__other_rectangular_grids(resize: str) -> None:
    encoder = _small(image_size=(16, 24))
    assert encoder.grid == (4, 6)
    assert encoder.features(torch.randn(1, 3, 16, 24), resize=resize).shape == (1, 16)  # type: ignore[arg-type]
    table = encoder.positions((7, 5), resize)  # type: ignore[arg-type]
    assert table.shape == (1, 35, 16)
    if resize == "interpolate":
        stored = encoder.pos_embed.transpose(1, 2).reshape(1, 16, 4, 6)
        resized = F.interpolate(stored, size=(7, 5), mode="bicubic", align_corners=False)
        torch.testing.assert_close(table, resized.flatten(2).transpose(1, 2))
    # The same number of patches in another shape is another grid.
    assert not torch.equal(encoder.positions((6, 4), resize), encoder.pos_embed)  # type: ignore[arg-type]


def test_channels__any_number() -> None:
    encoder = create_encoder("vit_nano", patch_size=8, image_size=32, in_channels=5)
    assert (
        encoder.features(torch.randint(0, 256, (2, 5, 32, 32), dtype=torch.uint8)).isfinite().all()
    )
    with pytest.raises(ValueError, match="5 channels, not 3"):
        encoder.features(torch.randn(2, 3, 32, 32))


def test_encoder__sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="100x100 does not divide into patches of 16"):
        create_encoder("vit_nano", image_size=100)
    with pytest.raises(ValueError, match="30x32 do not divide"):
        create_encoder("vit_nano", patch_size=8, image_size=32).features(torch.zeros(1, 3, 30, 32))
    with pytest.raises(ValueError, match="'vit_big' is not known"):
        create_encoder("vit_big")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"patch_size": 0}, "patch_size=0: expected a whole number of at least 1"),
        ({"patch_size": "4"}, "patch_size='4': expected a whole number"),
        ({"in_channels": 0}, "in_channels=0: expected a whole number of at least 1"),
        ({"image_size": -32}, "image_size=-32: expected a number of pixels, or a pair"),
        ({"image_size": (32, 16, 8)}, "or a pair of height and width"),
        ({"image_size": (32.0, 32.0)}, "or a pair of height and width"),
    ],
)
def test_create_encoder__wrong_sizes_get_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        create_encoder("vit_nano", **{"patch_size": 4, "image_size": 32} | wrong)
    assert "\n" not in str(caught.value)


def test_features__of_other_formats(pictures: np.ndarray) -> None:
    """Doubles are taken as what the weights are; whole numbers other than uint8 mean nothing."""
    encoder = create_encoder("vit_nano", patch_size=4, image_size=32)
    images = torch.from_numpy(pictures[:2]).permute(0, 3, 1, 2)
    floats = encoder.normalise(images)
    assert torch.equal(encoder.features(floats.double()), encoder.features(floats))
    with pytest.raises(ValueError, match=r"uint8, or as floats that are normalised .*not as int64"):
        encoder.features(images.long())
    for other in (pictures, "photos/"):
        with pytest.raises(ValueError, match=f"as a tensor, not as {type(other).__name__}"):
            encoder.features(other)  # type: ignore[arg-type]


def test_init__plain_and_depth_scaled() -> None:
    def spread(encoder: Encoder) -> list[float]:
        blocks = [block for block in encoder.blocks if isinstance(block, Block)]
        return [block.mlp.fc2.weight.std().item() for block in blocks]

    plain = Encoder(dim=128, depth=3, heads=2, patch_size=4, image_size=16)
    assert spread(plain) == pytest.approx([0.02] * 3, rel=0.03)
    scaled = Encoder(dim=128, depth=3, heads=2, patch_size=4, image_size=16, depth_scaled_init=True)
    assert spread(scaled) == pytest.approx([0.02 / (2 * k) ** 0.5 for k in (1, 2, 3)], rel=0.03)


def test_checkpointing__same_gradients() -> None:
    images, gradients = torch.randn(2, 3, 16, 16), []
    for checkpointing in (False, True):
        encoder = _small()
        encoder.set_grad_checkpointing(checkpointing)
        encoder(images).square().mean().backward()
        gradients.append(encoder.patch_embed.proj.weight.grad)
    torch.testing.assert_close(*gradients)


def test_patchify__order() -> None:
    images = torch.arange(2 * 4 * 6).view(1, 2, 4, 6)
    patches = patchify(images, 2)
    assert patches.shape == (1, 6, 8)
    assert torch.equal(patches[0, 4], images[0, :, 2:4, 2:4].flatten())
