"""How fast images become batches: ratios against a plain Pillow pipeline, in the same run.

    python benchmarks/data.py [--images 400] [--packed FILE.npz]

folder  500×375 JPEG files to augmented 224-px batches, images a second of one process, against
        Pillow image by image: open, convert, random resized crop, flip
packed  64-px JPEGs of a packed file the same way (made up ones where no file is given)
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from flexpredict.data.augment import CROP_DRAWS, random_crop
from flexpredict.data.held import Held
from flexpredict.data.loader import Batches, Order
from flexpredict.data.random import Stream, uniforms
from flexpredict.data.sources import Source, open_source
from flexpredict.data.sources.subset import SubsetSource

BATCH, MOST, ROUNDS = 200, 4000, 7


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A picture with structure at every scale, as photographs have."""
    layers = [
        np.asarray(
            Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize(
                (width, height), Image.Resampling.BICUBIC
            ),
            dtype=np.float32,
        )
        for side in (3, 8, 24, 80)
    ]
    mixed = sum(layer / 2**depth for depth, layer in enumerate(layers)) / 1.875
    return Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))


def folder(root: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    for number in range(count):
        photo(rng, 500, 375).save(root / f"{number:05d}.jpg", quality=90)
    return root


def packed(path: Path, count: int) -> Path:
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        buffer = io.BytesIO()
        photo(rng, 64, 64).save(buffer, "JPEG", quality=90)
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(path, jpeg=np.concatenate(files), offset=offsets)
    return path


def ours(source: Source, size: int) -> None:
    batches = Batches(source, Order(len(source), BATCH, 0), image_size=(size, size))
    for step in range(len(source) // BATCH):
        batches[step]


def plain(source: Source, size: int) -> None:
    """What a torchvision data set does, one image at a time."""
    for start in range(0, len(source) // BATCH * BATCH, BATCH):
        rows = np.arange(start, start + BATCH)
        draws = uniforms(0, Stream.CROP, 0, rows, count=CROP_DRAWS)
        images = []
        for row, draw in zip(rows, draws, strict=True):
            data = source.read(int(row))
            assert isinstance(data, bytes)
            image = Image.open(io.BytesIO(data)).convert("RGB")
            left, top, right, bottom = random_crop(image.height, image.width, draw, (0.3, 1.0))
            crop = image.crop((left, top, right, bottom))
            crop = crop.resize((size, size), Image.Resampling.BILINEAR)
            images.append(torch.from_numpy(np.array(crop)).permute(2, 0, 1))
        torch.stack(images)


def rates(source: Source, size: int) -> dict[str, float]:
    """Images a second of each way, the best of rounds in which all take their turn."""
    held = Held(source)
    ways: dict[str, Callable[[], None]] = {
        "plain": lambda: plain(source, size),
        "read": lambda: ours(source, size),
        "held in RAM": lambda: ours(held, size),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, work in ways.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: len(source) / seconds for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--packed", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos"
        photos.mkdir()
        file = chosen.packed or packed(Path(place) / "set.npz", 4000)
        cases = {
            "folder, 500×375 to 224": (open_source(folder(photos, chosen.images)), 224),
            "packed, 64 px": (open_source(file), 64),
        }
        for name, (source, size) in cases.items():
            rows = np.arange(min(len(source), MOST))
            found = rates(SubsetSource(source, rows), size)
            slow = found.pop("plain")
            for how, fast in found.items():
                print(
                    f"{name}, {how}: {fast:,.0f} against {slow:,.0f} images a second, "
                    f"{fast / slow:.2f} x"
                )


if __name__ == "__main__":
    main()
