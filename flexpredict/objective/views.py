"""What an objective is given beside the images: masks and random numbers, part by part."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from flexpredict.model.draws import Draws
from flexpredict.model.masking import Masks


class View(NamedTuple):
    """Masks of consecutive images of the batch that share their lengths, and their noise."""

    masks: Masks
    draws: Draws


def split(images: Tensor, views: Sequence[View]) -> Iterator[tuple[slice, View]]:
    """Each view with the slice of the batch it speaks of."""
    start = 0
    for view in views:
        yield slice(start, start + len(view.masks)), view
        start += len(view.masks)
    assert start == len(images)


def mean_over_images(losses: Sequence[Tensor], views: Sequence[View]) -> Tensor:
    """The mean over all images of the batch, from the means over each view's images.

    This is what data-parallel training on one view per device computes, and it does not change
    when views are cut in two.
    """
    count = sum(len(view.masks) for view in views)
    return sum(
        (loss * (len(view.masks) / count) for loss, view in zip(losses, views, strict=True)),
        start=losses[0].new_zeros(()),
    )
