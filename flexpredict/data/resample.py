"""Crops of whole batches, resized as Pillow resizes: two products with thin, banded matrices.

Pillow's bilinear filter with antialiasing makes each row of the result from a few neighbouring rows
of the image, and each column likewise; its factors are whole multiples of 2⁻²² and it rounds to
whole grey levels in between. Written as matrices, one for each image of a batch, that is two
batched products, on any device. Here columns come first. In float64 the result is then Pillow's to
the bit. It may differ by one grey level where Pillow itself takes rows first, because that is less
work, and in float32, which GPUs prefer.
"""

import torch
from torch import Tensor

_UNIT = 2.0**22  # Pillow's factors are whole multiples of 1 / _UNIT


def crop_batch(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """A box of each image at one size (height, width): (B, H, W, c) uint8 -> (B, c, *size) uint8.

    boxes (B, 4): left, top, right, bottom. Images may be smaller than H × W: what lies beside them,
    as anything beyond the box, is not seen.
    """
    _, height, width, channels = images.shape
    left, top, right, bottom = boxes.unbind(1)
    across = _matrices(left, right, width, size[1])  # (B, w, W)
    down = _matrices(top, bottom, height, size[0])  # (B, h, H)
    x = images.transpose(2, 3).to(across.dtype, memory_format=torch.contiguous_format)
    x = torch.bmm(x.flatten(1, 2), across.mT)  # (B, H · c, w)
    x = _whole(x).view(-1, height, channels * size[1])
    x = torch.bmm(down, x)  # (B, h, c · w)
    x = _whole(x).view(-1, size[0], channels, size[1])
    return x.transpose(1, 2).to(torch.uint8, memory_format=torch.contiguous_format)


def _whole(x: Tensor) -> Tensor:
    return x.add_(0.5).floor_()


def _matrices(start: Tensor, stop: Tensor, places: int, size: int) -> Tensor:
    """(B, size, places): how much of every place of an axis goes into each pixel of the result.

    Nothing beyond [start, stop) is seen: a crop is cut out first, and then resized.
    """
    exact = torch.float64 if start.device.type != "mps" else torch.float32
    start, stop = start.to(exact)[:, None], stop.to(exact)[:, None]
    scale = (stop - start) / size  # (B, 1)
    reach = scale.clamp(min=1)
    centre = start + (torch.arange(size, device=start.device, dtype=exact) + 0.5) * scale
    first = torch.maximum((centre - reach + 0.5).floor(), start)
    last = torch.minimum((centre + reach + 0.5).floor(), stop)
    taps = min(places, 2 * -(-places // size) + 3)
    place = first[..., None] + torch.arange(taps, device=start.device, dtype=exact)
    weight = (1 - ((place + 0.5 - centre[..., None]) / reach[..., None]).abs()).clamp(min=0)
    weight = weight * (place < last[..., None])
    weight = (weight / weight.sum(-1, keepdim=True) * _UNIT + 0.5).floor() / _UNIT
    dtype = exact if start.device.type == "cpu" else torch.float32
    matrix = torch.zeros(len(start), size, places, device=start.device, dtype=dtype)
    # Places beyond the end weigh nothing, and are added where they do no harm.
    return matrix.scatter_add_(2, place.clamp(max=places - 1).long(), weight.to(dtype))
