"""Any source as tar shards in the WebDataset convention, which `ShardSource` reads.

    shard-000000.tar    00000017-owl-night.jpg, the encoded bytes as they were, and
                        00000017-owl-night.cls, the number of its class, where there are labels
    classes.json        the names of the classes by their numbers
    manifest.json       what the shards were made from; size and digest of each finished one

A shard is written under another name, read back and compared, and only then given its own and
noted in the manifest. So a run that was killed goes on where it was, and the same images give the
same bytes, whether it was or not.
"""

import functools
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from flexpredict.data.inspect import kind_of
from flexpredict.data.processes import in_processes, workers_for
from flexpredict.data.sources import Progress, ShardSource, Source
from flexpredict.data.sources.base import Pixels
from flexpredict.data.sources.folder import SUFFIXES
from flexpredict.data.sources.identity import class_names, identity
from flexpredict.data.sources.shards import CLASSES
from flexpredict.files import alone_in, name_failure

MANIFEST = "manifest.json"
PER_SHARD = 10_000
_VERSION = 1
_LONGEST = 70  # letters of the old name; with the number and the suffix a plain header holds them
_SUFFIX_OF = {"jpeg": ".jpg", "tiff": ".tif"}


@dataclass(frozen=True, slots=True)
class Sharding:
    """What was written, or was there already."""

    out: Path
    images: int
    shards: int
    kept: int  # shards that an earlier call had finished
    bytes: int


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    rows: range
    known: dict[str, Any] | None  # what the manifest says of it


@dataclass(frozen=True, slots=True)
class _Done:
    name: str
    entry: dict[str, Any]
    kept: bool


def shard(
    source: Source,
    out: Path,
    *,
    per_shard: int = PER_SHARD,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sharding:
    """Write the images of a source to tar shards, or go on with that.

    `workers` is the number of processes; by default all cores where that pays.
    """
    if per_shard < 1:
        raise ValueError(f"a shard holds at least one image: per_shard={per_shard} is none")
    out = out.expanduser()
    origin = {
        "version": _VERSION,
        "source": identity(source),
        "images": len(source),
        "per_shard": per_shard,
    }
    known = _known_shards(out, origin)
    _make_folder(out)
    with _only_writer(out):
        for left in filter(_is_temporary, sorted(out.iterdir())):
            left.unlink()
        _write_manifest(out, origin, known)
        if source.labels is not None:
            _write(out / CLASSES, json.dumps(class_names(source), indent=0).encode())
        firsts = range(0, len(source), per_shard)
        plans = [
            _Plan(name, range(first, min(first + per_shard, len(source))), known.get(name))
            for first, name in zip(firsts, map("shard-{:06d}.tar".format, count()), strict=False)
        ]
        entries: dict[str, dict[str, Any]] = {}
        images = kept = 0
        processes = min(workers_for(source, workers), len(plans))
        task = functools.partial(_make, out)
        for done in in_processes(task, source, plans, processes):
            entries[done.name] = done.entry
            if not done.kept:
                _write_manifest(out, origin, known | entries)
            kept += done.kept
            images += done.entry["images"]
            if progress is not None:
                progress(images, len(source))
    size = sum(entry["bytes"] for entry in entries.values())
    return Sharding(out, len(source), len(plans), kept, size)


def _known_shards(out: Path, origin: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The finished shards in `out` by name; it must be ours, or empty."""
    if not out.exists():
        return {}
    if not out.is_dir():
        raise ValueError(f"{out} is a file: expected a new folder for the shards")
    if all(map(_is_temporary, out.iterdir())):
        return {}
    if not (out / MANIFEST).is_file():
        raise ValueError(f"{out} is not empty: name a new folder for the shards")
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
        known = dict(manifest.pop("shards"))
        entries = [{k: entry[k] for k in ("images", "bytes", "sha256")} for entry in known.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(
            f"{out / MANIFEST} is no manifest of shards: name a new folder for the shards"
        ) from None
    if manifest != origin:
        raise ValueError(
            f"{out} holds shards of other images, or of these before they changed, or with another "
            f"number per shard: name a new folder for the shards"
        )
    return dict(zip(known, entries, strict=True))


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {out} cannot be made: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise ValueError(f"the folder {out} cannot be written: name another for the shards")


@contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(alone_in(out))
        except BlockingIOError:
            raise ValueError(
                f"another process is writing shards to {out}: wait for it, or name a new folder"
            ) from None
        yield


def _make(out: Path, source: Source, plan: _Plan) -> _Done:
    """Keep a shard that is as the manifest says, or write it."""
    path = out / plan.name
    if plan.known is not None and path.is_file():
        size = path.stat().st_size
        if size == plan.known["bytes"] and _digest_of_file(path) == plan.known["sha256"]:
            return _Done(plan.name, plan.known, kept=True)
    temporary = _temporary(path)
    with _writing(temporary, path) as file:
        written = _write_shard(file, source, plan.rows)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # what is read back then comes from the disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    entry = {
        "images": len(plan.rows),
        "bytes": temporary.stat().st_size,
        "sha256": _digest_of_file(temporary),
    }
    _verify(temporary, source, plan, written)
    temporary.replace(path)
    return _Done(plan.name, entry, kept=False)


def _write_shard(file: io.BufferedWriter, source: Source, rows: range) -> list[bytes]:
    """Digests of the images that were written."""
    written = []
    # Plain headers without times and owners: the same images give the same bytes.
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for index in rows:
            try:
                data = source.read(index)
            except OSError as error:
                raise ValueError(
                    f"{source.name(index)} cannot be read ({error.strerror or error}): make it "
                    f"readable or take it out, then run this again"
                ) from None
            encoded = _encode(data) if isinstance(data, np.ndarray) else data
            key = _key(index, source.name(index))
            _add(tar, key + _suffix(source.name(index), encoded), encoded)
            if source.labels is not None:
                _add(tar, f"{key}.cls", str(int(source.labels[index])).encode())
            written.append(hashlib.sha256(encoded).digest())
    return written


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    tar.addfile(header, io.BytesIO(content))


def _key(index: int, name: str) -> str:
    """The number makes it unique; a person, or a list of rejected images, tells it by its name.

    A sample's key ends at the first dot, and other programs know few letters in tar headers.
    """
    stem, suffix = os.path.splitext(name)
    stem = stem if suffix.lower() in SUFFIXES else name
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", stem.replace("/", "-")).strip("-_")[-_LONGEST:]
    return f"{index:08d}-{stem}" if stem else f"{index:08d}"


def _suffix(name: str, data: bytes) -> str:
    """The one it had; else by its content. Readers look at the bytes, whatever stands here."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix in SUFFIXES:
        return suffix
    kind = kind_of(data)
    suffix = _SUFFIX_OF.get(kind or "", f".{kind}")
    return suffix if suffix in SUFFIXES else ".jpg"


def _encode(pixels: Pixels) -> bytes:
    """As PNG; more channels than it has as the pages of a TIFF file, as `decode` expects them."""
    encoded = io.BytesIO()
    channels = pixels.shape[2]
    if channels == 1:
        Image.fromarray(pixels[:, :, 0]).save(encoded, format="PNG")
    elif channels <= 4:
        Image.fromarray(np.ascontiguousarray(pixels)).save(encoded, format="PNG")
    else:
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        first, *rest = (Image.fromarray(plane) for plane in planes)
        first.save(encoded, format="TIFF", save_all=True, append_images=rest)
    return encoded.getvalue()


def _verify(path: Path, source: Source, plan: _Plan, written: list[bytes]) -> None:
    """Whoever reads the shard gets what was written to it."""
    found = ShardSource([path])
    same = [hashlib.sha256(found.read(i)).digest() for i in range(len(found))] == written
    if same and source.labels is not None:
        same = found.labels is not None and np.array_equal(
            found.labels, source.labels[plan.rows.start : plan.rows.stop]
        )
    if not same:
        raise OSError(f"{plan.name} reads back otherwise than it was written: check the disk")


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_manifest(out: Path, origin: dict[str, Any], shards: dict[str, Any]) -> None:
    manifest = origin | {"shards": dict(sorted(shards.items()))}
    _write(out / MANIFEST, json.dumps(manifest, indent=1).encode())


def _write(path: Path, content: bytes) -> None:
    temporary = _temporary(path)
    with _writing(temporary, path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def _writing(temporary: Path, path: Path) -> Iterator[io.BufferedWriter]:
    try:
        with temporary.open("wb") as file:
            yield file
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        name_failure(error, temporary, path)
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _is_temporary(path: Path) -> bool:
    names = rf"{re.escape(MANIFEST)}|{re.escape(CLASSES)}|shard-\d+\.tar"
    return re.fullmatch(rf"\.({names})\.\d+", path.name) is not None
