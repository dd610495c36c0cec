"""Video segmentation by label propagation: labels follow the features from frame to frame.

Every patch of a frame takes its label from the patches most like it in the first frame and in a few
previous ones, within a window around its place (DINO's protocol).
"""

from collections import deque
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]


@torch.inference_mode()
def propagate(
    frames: Iterable[Tensor],
    first_labels: Tensor,
    *,
    radius: int = 12,
    neighbours: int = 5,
    previous: int = 7,
    temperature: float = 0.1,
    rows_at_once: int = 8,
) -> Iterator[Tensor]:
    """Soft labels of every frame after the first, (classes, h, w) each.

    frames: patch features of each frame, (D, h, w), the first one included; read one at a time.
    first_labels: labels of the first frame, (classes, h, w), one-hot, background included.
    radius: of the window, in patches, along each axis.
    neighbours: how many patches of all context frames together a patch listens to.
    previous: how many frames before it, besides the first, are context.
    rows_at_once: bounds the memory, which does not depend on the length of the video.
    """
    stream = iter(frames)
    first = F.normalize(next(stream), dim=0), first_labels
    recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=previous)
    for frame in stream:
        features = F.normalize(frame, dim=0)
        context = [first, *recent]
        labels = _labels_of(
            features,
            torch.stack([known for known, _ in context]),
            torch.stack([known for _, known in context]),
            radius=radius,
            neighbours=neighbours,
            temperature=temperature,
            rows_at_once=rows_at_once,
        )
        recent.append((features, labels))
        yield labels


def _labels_of(
    features: Tensor,  # (D, h, w)
    context: Tensor,  # (frames, D, h, w)
    labels: Tensor,  # (frames, classes, h, w)
    *,
    radius: int,
    neighbours: int,
    temperature: float,
    rows_at_once: int,
) -> Tensor:
    _, height, width = features.shape
    column = torch.arange(width, device=features.device)
    near_column = (column[:, None] - column).abs() <= radius  # (w, w)
    parts = []
    for top in range(0, height, rows_at_once):
        bottom = min(top + rows_at_once, height)
        # Only rows inside the window can matter.
        low, high = max(0, top - radius), min(height, bottom + radius)
        row = torch.arange(top, bottom, device=features.device)
        other = torch.arange(low, high, device=features.device)
        near_row = (row[:, None] - other).abs() <= radius  # (r, R)
        near = near_row[:, None, :, None] & near_column[None, :, None, :]  # (r, w, R, w)
        here = features[:, top:bottom].flatten(1)  # (D, r · w)
        there = context[:, :, low:high].transpose(0, 1).flatten(1)  # (D, frames · R · w)
        known = labels[:, :, low:high].transpose(0, 1).flatten(1)  # (classes, frames · R · w)
        likeness = (here.T @ there).unflatten(1, (len(context), -1))
        likeness.masked_fill_(~near.flatten(2).flatten(0, 1)[:, None], -torch.inf)
        best, place = likeness.flatten(1).topk(min(neighbours, likeness[0].numel()), dim=1)
        weight = torch.softmax(best / temperature, dim=1)  # exp(cos / T), normalised
        parts.append((known[:, place] * weight).sum(-1))  # (classes, r · w)
    return torch.cat(parts, dim=1).unflatten(1, (height, width))


def to_pixels(labels: Tensor, patch_size: int, size: tuple[int, int]) -> Tensor:
    """The object of every pixel, (height, width): the largest of the upsampled channels."""
    stretched = stretch(
        F.interpolate(labels[None], scale_factor=patch_size, mode="bilinear", align_corners=False)[
            0
        ]
    )
    objects = stretched.argmax(0)
    return F.interpolate(objects[None, None].float(), size=size, mode="nearest")[0, 0].long()


def stretch(labels: Tensor) -> Tensor:
    """Each channel that is not empty stretched to [0, 1], (classes, H, W)."""
    low, high = labels.amin((1, 2), keepdim=True), labels.amax((1, 2), keepdim=True)
    return torch.where(high > 0, (labels - low) / (high - low).clamp(min=1e-12), labels)


def to_grid(mask: Tensor, grid: Grid) -> Tensor:
    """An indexed mask (height, width) as one-hot labels on the patch grid, (classes, h, w)."""
    small = F.interpolate(mask[None, None].float(), size=grid, mode="nearest")[0, 0].long()
    return F.one_hot(small, int(mask.max()) + 1).permute(2, 0, 1).float()
