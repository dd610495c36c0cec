"""Semi-supervised video segmentation (DAVIS): the first mask is given, the features carry it on."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flexpredict.data.sources import Progress
from flexpredict.data.sources.base import Pixels
from flexpredict.data.sources.davis import Video, palette, write_mask
from flexpredict.engine.encoders import encoder_digest
from flexpredict.engine.precision import autocast_frozen
from flexpredict.evaluate.metrics import sequence_measures, statistics
from flexpredict.evaluate.propagate import Grid, propagate, to_grid, to_pixels
from flexpredict.evaluate.results import Evaluation
from flexpredict.files import make_writable, whole
from flexpredict.model.vit import IMAGENET_STD, Encoder, Resize

_MULTIPLE = 64  # the longer side is cut down to a multiple of this (DINO)
_RED_STD = 0.228  # a typo for 0.229 in DINO's script, kept for parity (spec 3.5)
_GIF_WIDTH, _GIF_MS = 320, 80


@dataclass(frozen=True, slots=True)
class Following:
    """How labels follow the features: DINO's values."""

    size: int | None = 480  # of the shorter side; None: frames as they are
    resize: Resize = "interpolate"  # of the positions
    radius: int = 12
    neighbours: int = 5
    previous: int = 7
    temperature: float = 0.1


def segment(
    video: Video, features: Callable[[int], Tensor], grid: Grid, patch_size: int, how: Following
) -> Iterator[NDArray[np.uint8]]:
    """The mask of every frame, the given first one included.

    features: the patch features of a frame, (D, h, w); asked for in order, one at a time.
    """
    first = video.mask(0)
    yield first
    start = features(0)
    rest = (features(index) for index in range(1, len(video.frames)))
    labels = to_grid(torch.from_numpy(first), grid).to(start.device)
    for soft in propagate(
        itertools.chain([start], rest),
        labels,
        radius=how.radius,
        neighbours=how.neighbours,
        previous=how.previous,
        temperature=how.temperature,
    ):
        height, width = first.shape
        yield to_pixels(soft, patch_size, (height, width)).to(torch.uint8).cpu().numpy()


def encoder_features(
    encoder: Encoder, video: Video, how: Following
) -> tuple[Callable[[int], Tensor], Grid]:
    """Features of the last layer after the final norm, and their grid."""
    if encoder.in_channels != 3:
        raise ValueError(f"the encoder takes {encoder.in_channels} channels, but videos have 3")
    height, width = frame_size(video.frame(0), how.size)
    patch = encoder.patch_size
    grid = (height // patch, width // patch)
    if 0 in grid:
        raise ValueError(
            f"frames of {height}x{width} hold no patch of {patch}: choose a larger --size"
        )
    std = encoder.std.flatten().tolist()
    if np.allclose(std, IMAGENET_STD):
        std[0] = _RED_STD
    device = encoder.pos_embed.device
    scale = torch.tensor(std, device=device).view(3, 1, 1)

    def of(index: int) -> Tensor:
        frame = torch.from_numpy(np.ascontiguousarray(video.frame(index))).to(device)
        frame = frame.permute(2, 0, 1)[None].float()
        # OpenCV's bilinear resize, which does not antialias.
        frame = F.interpolate(frame, (height, width), mode="bilinear", align_corners=False)
        images = (frame.round() / 255 - encoder.mean) / scale
        images = images[..., : grid[0] * patch, : grid[1] * patch]
        with autocast_frozen(device):
            return encoder.feature_maps(images, resize=how.resize)[0][0].float()

    return of, grid


def frame_size(frame: Pixels, size: int | None) -> tuple[int, int]:
    """Shorter side `size`, longer side in proportion, cut down to a multiple of 64."""
    height, width = frame.shape[:2]
    if size is None:
        return height, width
    short = min(height, width)
    longer = int(size * max(height, width) / short) // _MULTIPLE * _MULTIPLE
    if longer == 0:
        raise ValueError(
            f"--size {size} is too small: the longer side is a multiple of {_MULTIPLE}"
        )
    return (size, longer) if width > height else (longer, size)


def measure(video: Video, masks: Sequence[NDArray[np.uint8]]) -> list[dict[str, Any]] | None:
    """J and F of every object, in percent; None where truth is not known for every frame."""
    if any(mask is None for mask in video.masks):
        return None
    truth = [video.mask(index) for index in range(len(video.frames))]
    found = []
    for number, (region, boundary) in enumerate(sequence_measures(truth, masks), start=1):
        j, f = statistics(region), statistics(boundary)
        found.append({"video": video.name, "object": number, "J": _percent(j), "F": _percent(f)})
    return found


def _percent(values: Any) -> dict[str, float]:
    return {name: 100 * value for name, value in asdict(values).items()}


def evaluate_videos(
    encoder: Encoder,
    videos: Sequence[Video],
    task: str,
    how: Following,
    *,
    which: str = "target",
    variant: dict[str, Any] | None = None,
    out: Callable[[Evaluation], Path] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """J and F over all videos.

    out: where masks and overlays of this evaluation go, NAME/00000.png and NAME.gif.
    """
    for video in videos:
        if len(video.frames) < 3 and None not in video.masks:
            raise ValueError(
                f"{video.name} has {len(video.frames)} frames: the first and the last are not "
                f"scored, so at least 3 are needed"
            )
    objects: list[dict[str, Any]] = []
    scored = 0
    found = Evaluation(
        task=task,
        method="video",
        protocol="dino",
        result={},
        encoder=which,
        layers=1,
        checkpoint=encoder_digest(encoder),
        variant=variant or {},
    )
    folder = None if out is None else out(found)
    if folder is not None:
        make_writable(folder)
    done, total = 0, sum(len(video.frames) for video in videos)
    for video in videos:
        features, grid = encoder_features(encoder, video, how)
        masks = []
        for mask in segment(video, features, grid, encoder.patch_size, how):
            masks.append(mask)
            done += 1
            if progress is not None:
                progress(done, total)
        measured = measure(video, masks)
        if folder is not None:  # video by video: all of them together may be large
            write_masks(folder, video, masks)
            write_overlay(folder / f"{video.name}.gif", video, masks)
        if measured is not None:
            objects += measured
            scored += 1
    note = f"label propagation, positions by {how.resize}; first and last frames are not scored"
    if scored < len(videos):
        note += f"; {len(videos) - scored} videos lack true masks and are not scored"
    return replace(
        found,
        result=_summary(objects),
        note=note,
        details={"videos": len(videos), "scored": scored, **asdict(how), "objects": objects},
    )


def _summary(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over objects, not over videos (spec 3.5)."""
    if not objects:
        return {}
    result: dict[str, Any] = {}
    for measured in ("J", "F"):
        for part, suffix in (("mean", ""), ("recall", "_recall"), ("decay", "_decay")):
            values = [one[measured][part] for one in objects]
            result[measured + suffix] = float(np.mean(values))
    return {"J&F": (result["J"] + result["F"]) / 2, **result}


def write_masks(out: Path, video: Video, masks: Sequence[NDArray[np.uint8]]) -> None:
    """Indexed PNGs in the colours of DAVIS, named as the frames are."""
    folder = out / video.name
    folder.mkdir(parents=True, exist_ok=True)
    for path, mask in zip(video.frames, masks, strict=True):
        write_mask(folder / f"{path.stem}.png", mask)


def write_overlay(path: Path, video: Video, masks: Sequence[NDArray[np.uint8]]) -> None:
    """An animation that a person can watch: objects tinted in the colours of their masks."""
    colours = palette().astype(np.float32)
    pictures = []
    for index, mask in enumerate(masks):
        frame = video.frame(index).astype(np.float32)
        tinted = 0.45 * frame + 0.55 * colours[mask]
        shown = np.where(mask[..., None] > 0, tinted, frame).round().astype(np.uint8)
        picture = Image.fromarray(shown)
        height = max(1, round(picture.height * min(1, _GIF_WIDTH / picture.width)))
        picture = picture.resize((min(picture.width, _GIF_WIDTH), height))
        pictures.append(picture.quantize(128))
    with whole(path) as file:
        pictures[0].save(
            file, save_all=True, append_images=pictures[1:], duration=_GIF_MS, loop=0, optimize=True
        )
