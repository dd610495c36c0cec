"""MAE: predict the pixels of hidden patches, each patch standardised by its own mean and variance.

The decoder is our predictor with one target block, so StoP's noise can be put on MAE's mask tokens
as well.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flexpredict.model.blocks import gather
from flexpredict.model.predictor import Predictor
from flexpredict.model.vit import Encoder, patchify
from flexpredict.objective.views import View, mean_over_images, split


class Mae(nn.Module):
    """There is one encoder: it is its own target."""

    def __init__(self, encoder: Encoder, predictor: Predictor) -> None:
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        return {"target": self.encoder, "context": self.encoder}

    def forward(self, images: Tensor, views: Sequence[View]) -> Tensor:
        targets = self.targets(images)  # (B, N, c · patch²)
        losses = []
        for part, view in split(images, views):
            losses.append(self._squares(images[part], targets[part], view).mean())
        return mean_over_images(losses, views) + self.predictor.penalty()

    def errors(self, images: Tensor, view: View) -> Tensor:
        """The loss of every token, (B, K, T), without penalties."""
        return self._squares(images, self.targets(images), view).mean(dim=-1)

    def _squares(self, images: Tensor, targets: Tensor, view: View) -> Tensor:
        features = self.encoder(images, view.masks.context)
        predicted = self.predictor(features, view.masks, view.draws).to(targets.dtype)
        return (predicted - gather(targets, view.masks.targets)).square()

    @torch.no_grad()
    def targets(self, images: Tensor) -> Tensor:
        """The standardised pixels of every patch."""
        patches = patchify(self.encoder.normalise(images), self.encoder.patch_size)
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()

    def update_target(self, momentum: float) -> None:
        """The encoder is its own target: nothing follows it."""
