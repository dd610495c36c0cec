"""I-JEPA: predict the features that a moving average of the encoder gives for hidden patches.

With stochastic positions in the predictor this is StoP; nothing else changes.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.blocks import gather
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder
from flexpredict.objective.beside import beside
from flexpredict.objective.lowres import Reduction, low_resolution_loss
from flexpredict.objective.views import View, mean_over_images, split

Loss = Literal["smooth_l1", "mse"]


class IJepa(nn.Module):
    """The context encoder, the predictor, and the target encoder that follows the first.

    loss: "smooth_l1" is what was trained; the papers' text says squared error, "mse".
    target_layers: 1 takes the last layer after its norm; more average that many of the last
        blocks, each layer-normalised, as data2vec does.
    low_resolution: adds a loss on targets of half the resolution (Table 8).
    """

    def __init__(
        self,
        encoder: Encoder,
        predictor: Predictor,
        *,
        loss: Loss = "smooth_l1",
        target_layers: int = 1,
        low_resolution: Reduction | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= target_layers <= len(encoder.blocks):
            raise ValueError(
                f"target_layers={target_layers}, but the encoder has {len(encoder.blocks)} layers"
            )
        self.encoder = encoder
        self.predictor = predictor
        self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.loss = loss
        self.target_layers = target_layers
        self.low_resolution = low_resolution
        self._followed: tuple[list[Tensor], list[Tensor]] | None = None

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        return {"target": self.target_encoder, "context": self.encoder}

    def forward(self, images: Tensor, views: Sequence[View]) -> Tensor:
        """(B, c, H, W) and views that cover the batch -> the batch's mean loss."""
        if len(views) == 1 and self.low_resolution is None:
            with beside(images) as join:
                # Patches that are nobody's target need not go through the last block.
                true = self.targets(images, views[0].masks.targets)  # (B, K, T, D)
            predicted = self.predictions(images, views[0])
            join()
            return self._distance(predicted, true) + self.predictor.penalty()
        targets = self.targets(images)  # (B, N, D)
        losses = [
            self._loss(images[part], targets[part], view) for part, view in split(images, views)
        ]
        return mean_over_images(losses, views) + self.predictor.penalty()

    @torch.no_grad()
    def targets(self, images: Tensor, places: Tensor | None = None) -> Tensor:
        """What is to be predicted, unit variance, no gradient: for every patch, (B, N, D).

        places: (B, K, T), the patches wanted where it is not all -> (B, K, T, D).
        """
        if places is not None and self.target_layers == 1:
            tokens = self.target_encoder(images, None, places.flatten(1))
            return _standardise(tokens).unflatten(1, places.shape[1:])
        if self.target_layers == 1:
            tokens = self.target_encoder(images)
        else:
            layers = self.target_encoder.layers(images, self.target_layers, norm=False)
            tokens = torch.stack([_standardise(layer) for layer in layers]).mean(0)
        tokens = _standardise(tokens)
        return tokens if places is None else gather(tokens, places)

    def predictions(self, images: Tensor, view: View) -> Tensor:
        """(B, K, T, D)"""
        features = self.encoder(images, view.masks.context)
        return self.predictor(features, view.masks, view.draws)

    def errors(self, images: Tensor, view: View) -> Tensor:
        """The loss of every token, (B, K, T), at full resolution and without penalties."""
        true = self.targets(images, view.masks.targets)
        return self._distance(self.predictions(images, view), true, "none").mean(dim=-1)

    def _loss(self, images: Tensor, targets: Tensor, view: View) -> Tensor:
        predicted = self.predictions(images, view).to(targets.dtype)
        loss = self._distance(predicted, gather(targets, view.masks.targets))
        if self.low_resolution is not None:
            loss = loss + low_resolution_loss(
                predicted,
                targets,
                view.masks,
                self.encoder.grid,
                self.low_resolution,
                partial(self._distance, reduction="none"),
            )
        return loss

    def _distance(self, predicted: Tensor, true: Tensor, reduction: str = "mean") -> Tensor:
        measure = F.smooth_l1_loss if self.loss == "smooth_l1" else F.mse_loss
        return measure(predicted.to(true.dtype), true, reduction=reduction)

    @torch.no_grad()
    def update_target(self, momentum: float) -> None:
        """θ̄ ← momentum · θ̄ + (1 − momentum) · θ, after the optimiser's step."""
        if self._followed is None:  # looked up once: that takes about a millisecond
            self._followed = [*self.target_encoder.parameters()], [*self.encoder.parameters()]
        target, encoder = self._followed
        torch._foreach_lerp_(target, encoder, 1 - momentum)


def _standardise(tokens: Tensor) -> Tensor:
    return F.layer_norm(tokens, tokens.shape[-1:])
