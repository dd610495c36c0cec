"""Published data sets in miniature, in exactly the files that they are published as.

Every class has a colour of its own, so that any features tell the classes apart.
"""

import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from flexpredict.data.sources.davis import write_mask

PARTS = {"train": 8, "val": 4}  # images per class
# For tarfile's extractall; Python before 3.11.4 does not know it.
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def picture(label: int, number: int, size: tuple[int, int] = (40, 32)) -> np.ndarray:
    """A noisy picture in the colour of its class, (height, width, 3)."""
    rng = np.random.default_rng((label, number))
    colour = np.array([(label * 83) % 256, (label * 47 + 120) % 256, (label * 139 + 60) % 256])
    noise = rng.normal(0, 12, (size[1], size[0], 3))
    return np.clip(colour + noise, 0, 255).astype(np.uint8)


def save(path: Path, label: int, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(label, number)).save(path, quality=95)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _each(classes: int) -> Iterator[tuple[str, int, int]]:
    """Part, label and number of every image; numbers differ over the whole set."""
    number = 0
    for part, count in PARTS.items():
        for label in range(classes):
            for _ in range(count):
                yield part, label, number
                number += 1


def labelled_folder(root: Path) -> None:
    for part, label, number in _each(3):
        save(root / part / f"class-{label}" / f"{number}.png", label, number)


def imagenet(root: Path) -> None:
    for part, label, number in _each(3):
        wnid = f"n0144076{label}"
        name = f"{wnid}_{number}" if part == "train" else f"ILSVRC2012_val_{number:08d}"
        save(root / part / wnid / f"{name}.JPEG", label, number)


def imagenet_1_percent(root: Path) -> None:
    imagenet(root)
    names = sorted(path.name for path in (root / "train").rglob("*.JPEG"))
    write(root / "1percent.txt", "".join(f"{name}\n" for name in names[::2]))


def tiny_imagenet(root: Path) -> None:
    root, lines = root / "tiny-imagenet-200", []
    write(root / "wnids.txt", "".join(f"n0{label}\n" for label in range(3)))
    for part, label, number in _each(3):
        if part == "train":
            save(root / f"train/n0{label}/images/n0{label}_{number}.JPEG", label, number)
        else:
            save(root / f"val/images/val_{number}.JPEG", label, number)
            lines.append(f"val_{number}.JPEG\tn0{label}\t0\t0\t31\t31\n")
    write(root / "val/val_annotations.txt", "".join(lines))


def _cifar_rows(part: str, classes: int) -> tuple[np.ndarray, list[int]]:
    chosen = [(label, number) for where, label, number in _each(classes) if where == part]
    images = np.stack([picture(label, number, (32, 32)) for label, number in chosen])
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072), [label for label, _ in chosen]


def cifar10(root: Path) -> None:
    root = root / "cifar-10-batches-py"
    rows, labels = _cifar_rows("train", 10)
    for batch in range(5):
        some = {b"data": rows[batch::5], b"labels": labels[batch::5]}
        dump_python2(root / f"data_batch_{batch + 1}", some | {b"batch_label": b"training batch"})
    rows, labels = _cifar_rows("val", 10)
    dump_python2(root / "test_batch", {b"data": rows, b"labels": labels})
    names = [f"class {label}".encode() for label in range(10)]
    dump_python2(root / "batches.meta", {b"label_names": names, b"num_vis": 3072})


def cifar100(root: Path) -> None:
    root = root / "cifar-100-python"
    for name, part in (("train", "train"), ("test", "val")):
        rows, labels = _cifar_rows(part, 4)
        coarse = {b"coarse_labels": [0] * len(labels), b"filenames": [b"x.png"] * len(labels)}
        dump_python2(root / name, coarse | {b"data": rows, b"fine_labels": labels})
    names = [f"fine {label}".encode() for label in range(100)]
    dump_python2(root / "meta", {b"fine_label_names": names, b"coarse_label_names": [b"c"] * 20})


def places205(root: Path) -> None:
    lists: dict[str, list[str]] = {part: [] for part in PARTS}
    for part, label, number in _each(3):
        name = f"a/abbey{label}/gsun_{number:05d}.jpg"
        save(root / "data/vision/torralba/deeplearning/images256" / name, label, number)
        lists[part].append(f"{name} {label}\n")
    for part, lines in lists.items():
        write(root / f"trainvalsplit_places205/{part}_places205.csv", "".join(lines))


def inat18(root: Path) -> None:
    for part in PARTS:
        some = [(label, number) for where, label, number in _each(3) if where == part]
        images = [
            {"id": number, "file_name": f"train_val2018/Aves/{label}/{number:032x}.jpg"}
            for label, number in some
        ]
        for image, (label, number) in zip(images, some, strict=True):
            save(root / str(image["file_name"]), label, number)
        listing = {
            "images": images,
            "annotations": [
                {"id": number, "image_id": number, "category_id": label} for label, number in some
            ],
            "categories": [{"id": label, "name": str(label)} for label in range(3)],
        }
        write(root / f"{part}2018.json", json.dumps(listing))


def clevr(root: Path) -> None:
    """Three to five objects, the nearest one in another bin for each number of them."""
    root = root / "CLEVR_v1.0"
    scenes: dict[str, list[Any]] = {part: [] for part in PARTS}
    for part, label, number in _each(3):
        name = f"CLEVR_{part}_{number:06d}.png"
        save(root / "images" / part / name, label, number)
        depths = [7.5 + label + place for place in range(3 + label)]
        objects = [{"pixel_coords": [10, 20, depth], "shape": "cube"} for depth in depths]
        scenes[part].append({"image_filename": name, "objects": objects})
    for part, listed in scenes.items():
        path = root / "scenes" / f"CLEVR_{part}_scenes.json"
        write(path, json.dumps({"info": {"split": part}, "scenes": listed}))


def davis(root: Path, year: str = "2017", frames: int = 5) -> None:
    """Squares that move over a grey ground; in 2017 two of them and void, in 2016 one of 255."""
    root, names = root / "DAVIS", ["bear", "camel"]
    for name in names:
        for index in range(frames):
            image = np.full((64, 96, 3), 120, np.uint8)
            mask = np.zeros((64, 96), np.uint8)
            left = 8 + 3 * index
            image[8:32, left : left + 24], mask[8:32, left : left + 24] = (200, 30, 30), 1
            if year == "2017":
                image[36:60, left : left + 24], mask[36:60, left : left + 24] = (30, 200, 30), 2
                mask[:, -1] = 255
            frame = root / "JPEGImages/480p" / name / f"{index:05d}.jpg"
            frame.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(frame, quality=95)
            path = root / "Annotations/480p" / name / f"{index:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            if year == "2017":
                write_mask(path, mask)
            else:
                Image.fromarray(mask * 255).save(path)
    if year == "2017":
        write(root / "ImageSets/2017/val.txt", "".join(f"{name}\n" for name in names))
    else:
        lines = [
            f"/JPEGImages/480p/{name}/{index:05d}.jpg /Annotations/480p/{name}/{index:05d}.png\n"
            for name in names
            for index in range(frames)
        ]
        write(root / "ImageSets/480p/val.txt", "".join(lines))


WRITERS: dict[str, Callable[[Path], None]] = {
    "imagenet": imagenet,
    "imagenet-1%": imagenet_1_percent,
    "imagenet-1%@msn": imagenet_1_percent,
    "tiny-imagenet": tiny_imagenet,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar100@crop": cifar100,
    "places205": places205,
    "inat18": inat18,
    "inat18@bilinear": inat18,
    "clevr-count": clevr,
    "clevr-count@crop": clevr,
    "clevr-dist": clevr,
    "clevr-dist@crop": clevr,
}


def boxes(path: Path, count: int = 60, size: tuple[int, int] = (32, 32)) -> Path:
    """Dark pictures with a bright rectangle, of which every tenth box is wrong: without width."""
    rng = np.random.default_rng(0)
    files, boxes = [], []
    for index in range(count):
        x0, y0 = rng.integers(0, size[0] // 2), rng.integers(0, size[1] // 2)
        x1, y1 = rng.integers(x0 + 4, size[0] + 1), rng.integers(y0 + 4, size[1] + 1)
        pixels = rng.integers(0, 40, (size[1], size[0], 3), dtype=np.uint8)
        pixels[y0:y1, x0:x1] += 200
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, format="PNG" if index % 2 else "JPEG", quality=95)
        files.append(data.getvalue())
        boxes.append((x0, y0, x0 if index % 10 == 3 else x1, y1))
    np.savez(
        path,
        allow_pickle=False,
        jpeg=np.frombuffer(b"".join(files), dtype=np.uint8),
        offset=np.cumsum([0, *map(len, files)]),
        split=(np.arange(count) % 3 == 2).astype(np.uint8),
        bbox=np.array(boxes, dtype=np.uint8),
    )
    return path


def python2_pickle(value: Any) -> bytes:
    """The opcodes that Python 2 writes for a value in protocol 2; its strings are bytes here."""
    if isinstance(value, bytes):
        short = len(value) < 256
        return (
            b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))
        ) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2_pickle, value)) + b"e"
    if isinstance(value, dict):
        items = (python2_pickle(key) + python2_pickle(item) for key, item in value.items())
        return b"}(" + b"".join(items) + b"u"
    assert isinstance(value, np.ndarray)
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = b"".join(map(python2_pickle, value.shape)) + b"\x86"
    return made + b"(K\x01" + shape + dtype + b"\x89" + python2_pickle(value.tobytes()) + b"tb"


def dump_python2(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x80\x02" + python2_pickle(value) + b".")
