"""CIFAR-10 and CIFAR-100 in their Python version: pickled batches of 32×32 images."""

from pathlib import Path

import numpy as np

from flexpredict.data.sources.files import stamp_of_files
from flexpredict.data.sources.memory import MemorySource
from flexpredict.data.sources.pickles import read_pickle, text
from flexpredict.data.sources.reading import folder_with


def cifar10(root: Path, split: str) -> MemorySource:
    """data_batch_1 … 5, test_batch and batches.meta."""
    root = folder_with(root, "batches.meta", "cifar-10-batches-py")
    train = [f"data_batch_{number}" for number in range(1, 6)]
    files = train if split == "train" else ["test_batch"]
    return _cifar(root, files, "labels", "batches.meta", "label_names")


def cifar100(root: Path, split: str) -> MemorySource:
    """train, test and meta; the hundred fine classes."""
    root = folder_with(root, "meta", "cifar-100-python")
    return _cifar(root, [split], "fine_labels", "meta", "fine_label_names")


def _cifar(root: Path, files: list[str], labels_key: str, meta: str, key: str) -> MemorySource:
    stamp = stamp_of_files(root, files)
    names = read_pickle(root / meta).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise ValueError(f"{root / meta} has no {key}: expected the file as it was published")
    images, labels = [], []
    for file in files:
        batch = read_pickle(root / file)
        rows, numbers = batch.get("data"), batch.get(labels_key)
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3 * 32 * 32:
            raise ValueError(f"{root / file} has no images: expected data of 3072 bytes a row")
        if not isinstance(numbers, list) or len(numbers) != len(rows):
            raise ValueError(f"{root / file} has no {labels_key}: expected {len(rows)}, one a row")
        if not all(isinstance(n, int) and 0 <= n < len(names) for n in numbers):
            raise ValueError(f"{root / file} has {labels_key} outside 0 … {len(names) - 1}")
        # A row is the red plane, then the green, then the blue.
        images.append(np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)))
        labels.append(np.array(numbers, dtype=np.int64))
    return MemorySource(
        np.concatenate(images), np.concatenate(labels), [text(name) for name in names], stamp=stamp
    )
