"""Mean colours of patches as features: what any encoder has to be better than."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.vit import IMAGENET_MEAN, IMAGENET_STD, Encoder, Resize


class PixelMeans(Encoder):
    """Takes images as an encoder does and learns nothing; features are all patches in a row."""

    def __init__(
        self,
        grid: tuple[int, int],
        patch_size: int,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        nn.Module.__init__(self)  # an encoder in what it does, not in what it is made of
        self.architecture = {"pixels": grid, "patch_size": patch_size, "mean": mean, "std": std}
        self.grid, self.patch_size, self.in_channels = grid, patch_size, len(mean)
        self.dim = self.in_channels * grid[0] * grid[1]
        self.blocks = nn.ModuleList([nn.Identity()])
        self.norm = nn.Identity()  # type: ignore[assignment]
        self.pos_embed = nn.Parameter(torch.zeros(0), requires_grad=False)  # says where it is
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def layers(
        self, images: Tensor, count: int, *, norm: bool = True, resize: Resize = "recompute"
    ) -> list[Tensor]:
        """(B, N, c), the mean colour of each patch."""
        del norm, resize
        if count != 1:
            raise ValueError(f"pixels have one layer: cannot give {count}, ask for layers=1")
        means = F.avg_pool2d(self.normalise(images).float(), self.patch_size)
        return [means.flatten(2).transpose(1, 2)]

    @torch.inference_mode()
    def features(self, images: Tensor, *, layers: int = 1, resize: Resize = "recompute") -> Tensor:
        """(B, N · c), at any size as many as at the encoder's own."""
        del resize
        (means,) = self.feature_maps(images, layers=layers)
        return F.adaptive_avg_pool2d(means, self.grid).flatten(1)
