"""Mean colours of patches as features: what any encoder has to be better than."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexpredict.model.vit import Encoder, Resize


class PixelMeans(Encoder):
    """Takes images as an encoder does and learns nothing; features are all patches in a row."""

    def __init__(self, like: Encoder) -> None:
        nn.Module.__init__(self)  # an encoder in what it does, not in what it is made of
        self.grid, self.patch_size, self.in_channels = like.grid, like.patch_size, like.in_channels
        self.dim = self.in_channels * self.grid[0] * self.grid[1]
        known = {name: like.architecture[name] for name in ("mean", "std")}
        self.architecture = {"pixels": self.grid, "patch_size": self.patch_size, **known}
        self.blocks = nn.ModuleList([nn.Identity()])
        self.norm = nn.Identity()  # type: ignore[assignment]
        self.pos_embed = nn.Parameter(torch.zeros(0), requires_grad=False)  # says where it is
        for name in ("mean", "std"):
            self.register_buffer(name, getattr(like, name).clone(), persistent=False)

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

    def forward(
        self,
        images: Tensor,
        keep: Tensor | None = None,
        places: Tensor | None = None,
        *,
        resize: Resize = "recompute",
    ) -> Tensor:
        assert keep is None
        assert places is None
        return self.layers(images, 1, resize=resize)[0]
