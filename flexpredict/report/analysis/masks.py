"""How often masks show or ask for each patch."""

import torch
from torch import Tensor

from flexpredict.model.masking import MaskSampler

_IMAGES = 4096


def coverage(sampler: MaskSampler, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """Shares of images in which a patch is context, and in which it is a target: (h, w) each.

    chunk: how many images are drawn at once, which `paper` masks depend on.
    """
    patches = sampler.grid[0] * sampler.grid[1]
    generator = torch.Generator().manual_seed(0)
    seen, asked = torch.zeros(2, patches, dtype=torch.float64)
    chunks = max(1, _IMAGES // chunk)
    for _ in range(chunks):
        masks = sampler.sample(chunk, generator)
        for count, places in ((seen, masks.context), (asked, masks.targets.flatten(1))):
            hit = torch.zeros(chunk, patches, dtype=torch.float64).scatter(1, places, 1.0)
            count += hit.sum(0)
    seen, asked = seen / (chunks * chunk), asked / (chunks * chunk)
    return seen.view(sampler.grid), asked.view(sampler.grid)
