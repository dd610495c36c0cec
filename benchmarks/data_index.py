"""A folder of 14 million made-up images by its index: opening, private memory, cost per sample.

Paths as in ImageNet-22k, 1000 in each of 14,000 folders. The folders exist, so that opening looks
at the state of each; the images do not. Worker processes read names in shuffled order.

    opening   a FolderSource in a fresh process, the file in the page cache or not; beside it a
              plain list of the same paths, read from a text file
    memory    USS (pages that no other process maps) of the main process and of each worker after
              1 % of an epoch, without an index and with one. A lone worker is the only one to map
              the file, so that pages of it count as its own; they are page cache all the same.
              Forked workers share what Python and torch take, spawned ones do not.
    cost      names in shuffled order from 14 million, against 14 thousand: the same work, but
              14 thousand stay in the processor's cache

    OMP_NUM_THREADS=1 python benchmarks/data_index.py [COUNT]

Needs about 1.1 GB in the folder for temporary files, and a minute.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset

from flexpredict.data.random import Stream, permute
from flexpredict.data.sources.folder import FolderSource
from flexpredict.data.sources.index import folder_state, index_path, write_index

COUNT, SMALL, EACH, BATCH, WORKERS = 14_000_000, 14_000, 1000, 1000, 4


def made_up(count: int) -> Iterator[str]:
    for folder in range(count // EACH):
        name = f"n{folder:08d}"
        for place in range(EACH):
            yield f"{name}/{name}_{place}.JPEG"


def write(root: Path, count: int) -> Path:
    """Folders without images, and an index that knows of images in them."""
    names = [f"n{folder:08d}" for folder in range(count // EACH)]
    for name in names:
        (root / name).mkdir(parents=True)
    folders = {name: folder_state(root / name) for name in ("", *names)}
    labels = np.repeat(np.arange(len(names)), EACH)
    later = time.time_ns() + 3_000_000_000  # as if the folders were older than the walk
    path = index_path(root)
    write_index(path, made_up(count), labels, names, folders=folders, walked_ns=later)
    return path


def seconds(code: str, *arguments: object) -> float:
    """What a fresh process prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


OPEN = """
import sys, time
from pathlib import Path
from flexpredict.data.sources.folder import FolderSource
start = time.perf_counter()
source = FolderSource(Path(sys.argv[1]))
last = source.name(len(source) - 1)
print(time.perf_counter() - start)
assert len(source) == int(sys.argv[2]) and source.labels is not None and last
"""

OPEN_LIST = """
import sys, time
start = time.perf_counter()
paths = open(sys.argv[1]).read().splitlines()
print(time.perf_counter() - start)
assert len(paths) == int(sys.argv[2])
"""


def forget(path: Path) -> None:
    """Drop a file from the page cache, so that it is read from the disk again."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Uss(NamedTuple):
    """MiB that belong to a process alone: pages of files that it alone has mapped, and its own."""

    clean: float
    dirty: float


def uss() -> Uss:
    lines = Path("/proc/self/smaps_rollup").read_text("utf-8").splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return Uss(kib["Private_Clean:"] / 1024, kib["Private_Dirty:"] / 1024)


class Names(Dataset[tuple[int, Uss]]):
    """Reads batches of names in shuffled order, or nothing; says which process did and its USS."""

    def __init__(self, source: FolderSource | None) -> None:
        self.source = source

    def __getitem__(self, batch: int) -> tuple[int, Uss]:
        if self.source is not None:
            read_names(self.source, batch)
        return os.getpid(), uss()


def read_names(source: FolderSource, batch: int) -> float:
    """Read a batch of names; the seconds that the order alone took."""
    epoch, place = divmod(batch * BATCH, len(source))
    places = np.arange(place, place + BATCH)
    start = time.perf_counter()
    indices = permute(places, len(source), 0, Stream.ORDER, epoch).tolist()
    ordered = time.perf_counter() - start
    for index in indices:
        source.name(index)
    return ordered


def iterate(source: FolderSource | None, batches: int, workers: int, start: str) -> list[Uss]:
    """Memory of each worker when it has read its last batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores
        loader = DataLoader(
            Names(source),
            batch_size=None,
            sampler=range(batches),
            num_workers=workers,
            multiprocessing_context=start,
        )
        return list(dict(loader).values())


def memory(root: Path, batches: int) -> None:
    print("memory    MiB of USS (of it clean pages of files)", flush=True)
    for what, start, workers in (
        ("nothing", "fork", WORKERS),
        ("index", "fork", 1),
        ("index", "fork", 2),
        ("index", "fork", WORKERS),
        ("nothing", "spawn", WORKERS),
        ("index", "spawn", WORKERS),
    ):
        source = None if what == "nothing" else FolderSource(root)
        found = iterate(source, batches, workers, start)
        assert len(found) == workers
        each = ", ".join(f"{sum(one):.0f} ({one.clean:.0f})" for one in sorted(found, key=sum))
        main = uss()
        print(
            f"          {what:7} {start:5} main {sum(main):.0f} ({main.clean:.0f}), workers {each}",
            flush=True,
        )


def microseconds(source: FolderSource, batches: int) -> tuple[float, float]:
    """Per sample: for its place in the order, and for its name."""
    start = time.perf_counter()
    ordered = sum(read_names(source, batch) for batch in range(batches))
    named = time.perf_counter() - start - ordered
    return 1e6 * ordered / (batches * BATCH), 1e6 * named / (batches * BATCH)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    batches = count // 100 // BATCH
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLEXPREDICT_CACHE"] = folder
        root, small = Path(folder) / "large", Path(folder) / "small"
        start = time.perf_counter()
        path = write(root, count)
        size = path.stat().st_size / 1e6
        print(f"written   {count:,} paths, {size:.0f} MB, {time.perf_counter() - start:.1f} s")
        write(small, SMALL)
        text = Path(folder) / "paths.txt"
        with text.open("w") as file:
            file.writelines(f"{name}\n" for name in made_up(count))

        forget(path)
        cold = seconds(OPEN, root, count)
        warm = [seconds(OPEN, root, count) for _ in range(3)]
        listed = seconds(OPEN_LIST, text, count)
        text.unlink()
        ratio = listed / np.median(warm)
        print(f"opening   {cold:.3f} s from the disk, {np.median(warm):.3f} s from the page cache")
        print(f"          a list of the paths {listed:.3f} s, ratio {ratio:.1f}")

        # In a process of its own: this one keeps memory from writing.
        fresh = multiprocessing.get_context("spawn").Process(target=memory, args=(root, batches))
        fresh.start()
        fresh.join()
        assert fresh.exitcode == 0

        source = FolderSource(root)
        few = FolderSource(small)
        rounds = np.array(
            [(microseconds(source, batches), microseconds(few, batches)) for _ in range(5)]
        )
        many, less = np.median(rounds, axis=0)
        print(f"cost      µs per sample of {count:,} | of {SMALL:,} | ratio")
        for what, one, two in zip(("order", "name"), many, less, strict=True):
            print(f"          {what:5} {one:.2f} | {two:.2f} | {one / two:.2f}")
        first = rounds[0, 0].sum()
        print(
            f"          both  {many.sum():.2f} | {less.sum():.2f} | {many.sum() / less.sum():.2f}"
        )
        print(f"          both, while pages are mapped for the first time: {first:.2f}")


if __name__ == "__main__":
    main()
