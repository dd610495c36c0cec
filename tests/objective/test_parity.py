"""Outputs, loss and gradients of the released modules, on weights loaded by their own names."""

import numpy as np
import pytest
import torch
from torch import Tensor

from flexpredict.model.blocks import gather
from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks
from flexpredict.model.positions import StochasticPositions
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder
from flexpredict.objective.ijepa import IJepa
from flexpredict.objective.views import View


class _Given(Draws):
    """Noise from a file instead of a generator."""

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.noise = noise

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        assert tuple(self.noise.shape) == shape
        return self.noise.to(like)


@pytest.mark.parametrize("name", ["ijepa", "stop"])
def test_released_modules__parity(name: str, vectors: dict[str, dict[str, np.ndarray]]) -> None:
    data = {key: torch.from_numpy(value) for key, value in vectors[f"{name}-tiny"].items()}
    std = 0.25 if name == "stop" else 0.0
    encoder = Encoder(dim=32, depth=3, heads=4, patch_size=4, image_size=24)
    predictor = Predictor(
        encoder_dim=32, output_dim=32, dim=16, depth=2, heads=4, grid=(6, 6),
        positions=StochasticPositions(32, 16, std, form="released"),
    )  # fmt: skip
    objective = IJepa(encoder, predictor)
    for part in ("encoder", "predictor", "target_encoder"):
        prefix = f"{part}."
        state = {k.removeprefix(prefix): v for k, v in data.items() if k.startswith(prefix)}
        getattr(objective, part).load_state_dict(state, strict=True)

    masks = Masks(data["context"].long(), data["targets"].long().permute(1, 0, 2))
    draws = _Given(data["noise"].permute(1, 0, 2, 3) / std) if std else Draws()
    view = View(masks, draws)

    def block_major(x: Tensor) -> Tensor:  # (B, K, T, D) -> (K · B, T, D)
        return x.transpose(0, 1).flatten(0, 1)

    images = data["images"]
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(encoder(images, masks.context), data["context_features"], **close)
    torch.testing.assert_close(objective.target_encoder(images), data["target_full"], **close)
    targets = gather(objective.targets(images), masks.targets)
    torch.testing.assert_close(block_major(targets), data["target_tokens"], **close)
    torch.testing.assert_close(
        block_major(objective.predictions(images, view)), data["predictions"], **close
    )
    loss = objective(images, [view])
    torch.testing.assert_close(loss, data["loss"].float().view(()), **close)
    loss.backward()
    compared = 0
    for key, parameter in objective.named_parameters():
        if f"grad.{key}" in data:
            torch.testing.assert_close(parameter.grad, data[f"grad.{key}"], **close)
            compared += 1
        else:
            assert parameter.grad is None, key
    assert compared == sum(key.startswith("grad.") for key in data) > 60
