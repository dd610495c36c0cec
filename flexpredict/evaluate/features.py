"""Frozen features of a set of images."""

import torch
from torch import Tensor

from flexpredict.data.loader import central_images
from flexpredict.data.sources import Progress, Source
from flexpredict.model.vit import Encoder, Size


@torch.inference_mode()
def extract(
    encoder: Encoder,
    source: Source,
    *,
    layers: int = 1,
    image_size: Size | None = None,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """(images, D · layers): token means after the final norm, of the central crop of each image."""
    device = encoder.pos_embed.device
    rows, columns = encoder.grid
    size = image_size or (rows * encoder.patch_size, columns * encoder.patch_size)
    size = (size, size) if isinstance(size, int) else size
    features = []
    for start in range(0, len(source), batch_size):
        stop = min(start + batch_size, len(source))
        images = central_images(source, start, stop, size, encoder.in_channels)
        features.append(encoder.features(images.to(device), layers=layers).float().cpu())
        if progress is not None:
            progress(stop, len(source))
    return torch.cat(features)


def block_means(source: Source, blocks: int, *, image_size: tuple[int, int]) -> Tensor:
    """The plainest features: mean colours of blocks × blocks parts, (images, blocks² · c)."""
    images = central_images(source, 0, len(source), image_size).float()
    return torch.nn.functional.adaptive_avg_pool2d(images, blocks).flatten(1)
