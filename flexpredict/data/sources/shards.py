"""Tar shards in the WebDataset convention: files that share a name up to its first dot, a sample.

    000017.jpg    its image
    000017.cls    its label, an integer; or
    000017.json   its label, under "label", a number or a name

A list of names in classes.json beside the shards says what the numbers 0, 1, … of labels stand for.
Opening reads the headers and the labels; images are read where they lie. Nothing is ever extracted.
"""

import functools
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import glob
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flexpredict.data.sources.files import stamp_of_files
from flexpredict.data.sources.folder import SUFFIXES
from flexpredict.data.sources.listing import number_labels

CLASSES = "classes.json"
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_COMPRESSED_STARTS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_MOST_SHARDS = 1_000_000
_LARGEST_LABEL = 1 << 20  # bytes
_BLOCK = 512


class ShardSource:
    """The images in some tar files: those of the first shard, then those of the next.

    within: how the names of the images that are meant begin, such as `train/`.
    """

    def __init__(self, paths: list[Path], within: str = "") -> None:
        _check_shards(paths)
        paths = [path.absolute() for path in paths]
        self.root = Path(os.path.commonpath([path.parent for path in paths]))
        self.shards = [str(path.relative_to(self.root)) for path in paths]
        # Taken before reading: shards changed meanwhile are then read again, not taken for known.
        names = [CLASSES] if (self.root / CLASSES).is_file() else []
        self._stamp = stamp_of_files(self.root, [*self.shards, *names]) + within
        index = _Index()
        for number, path in enumerate(paths):
            _add_shard(index, number, path, within)
        if not index.size:
            kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
            below = f" below {within}" if within else ""
            raise ValueError(f"there are no images in {_called(paths)}{below}: expected {kinds}")
        self._shard = np.array(index.shard, dtype=np.int32)
        self._offset = np.array(index.offset, dtype=np.int64)
        self._size = np.array(index.size, dtype=np.int64)
        # Millions of strings would be copied into every worker; one array is shared.
        self._names = np.frombuffer(b"".join(index.name), dtype=np.uint8)
        self._name_ends = np.cumsum([len(name) for name in index.name], dtype=np.int64)
        self.labels: NDArray[np.int64] | None = None
        self.classes: list[str] = []
        known = [label for label in index.label if label is not None]
        if known and len(known) < len(self):
            first = self.name(index.label.index(None))
            raise ValueError(
                f"{len(known)} of {len(self)} images in {_called(paths)} have labels, and {first} "
                f"has none: expected a label for each or for none"
            )
        if known:
            named = _named_classes(self.root / CLASSES, known)
            self.labels, self.classes = named or number_labels(known)

    def __len__(self) -> int:
        return len(self._size)

    def read(self, index: int) -> bytes:
        shard, size = self.shards[self._shard[index]], int(self._size[index])
        handle = _open_shard(os.path.join(self.root, shard), self._stamp)
        data = os.pread(handle.descriptor, size, int(self._offset[index]))
        if len(data) != size:
            raise OSError(f"{shard} has become shorter since it was opened")
        return data

    def name(self, index: int) -> str:
        start = self._name_ends[index - 1] if index else 0
        name = self._names[start : self._name_ends[index]].tobytes()
        return f"{self.shards[self._shard[index]]}/{name.decode(errors='surrogateescape')}"

    def stamp(self) -> str | None:
        return self._stamp


class _Handle:
    """An open file that is closed when nobody reads from it any more."""

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


@functools.lru_cache(maxsize=64)  # a process may hold open a thousand files or so
def _open_shard(path: str, stamp: str) -> _Handle:  # noqa: ARG001
    """Each process opens its own; a file that took another's place has another stamp."""
    return _Handle(path)


def shard_paths(spec: str) -> list[Path] | None:
    """The tar files that a person names, or None where they name something else.

    A tar file, `train-{000..012}.tar`, `shards/*.tar`, or a folder with tar files and no images.
    """
    path = Path(spec).expanduser()
    if path.is_dir():
        return _shards_in(path)
    if not spec.lower().endswith((".tar", *_COMPRESSED)):
        return None
    return expand(path, "tar shards")


def expand(path: Path, expected: str) -> list[Path]:
    """The files that a pattern names, `part{A,B}.npz` or `part*.npz`; else the path itself."""
    spec = str(path)
    if path.exists():
        return [path]
    if "{" in spec:
        return [Path(name) for name in _expand_braces(spec)]
    if any(letter in spec for letter in "*?["):
        found = sorted(glob(spec, recursive=True))
        if not found:
            raise ValueError(f"{spec} matches no files: expected {expected}")
        return [Path(name) for name in found]
    return [path]


def _shards_in(folder: Path) -> list[Path] | None:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.lower()
            if name.startswith("."):
                continue
            if os.path.splitext(name)[1] in SUFFIXES or entry.is_dir():
                return None  # a folder of images
            if name.endswith((".tar", *_COMPRESSED)):
                found.append(folder / entry.name)
    return sorted(found) or None


def _expand_braces(spec: str) -> Iterator[str]:
    """All names for `{000..012}`, an inclusive range with its zeros, and `{a,b}`."""
    texts = re.split(r"\{([^{}]*)\}", spec)
    choices = [_choices(text, spec) if place % 2 else [text] for place, text in enumerate(texts)]
    if np.prod([float(len(some)) for some in choices]) > _MOST_SHARDS:
        raise ValueError(f"{spec} names more than {_MOST_SHARDS:,} shards: expected fewer")
    return map("".join, product(*choices))


def _choices(text: str, spec: str) -> list[str]:
    if numbers := re.fullmatch(r"([0-9]+)\.\.([0-9]+)", text):
        first, last = numbers.groups()
        count = int(last) - int(first) + 1
        if 0 < count <= _MOST_SHARDS:
            return [str(int(first) + more).zfill(len(first)) for more in range(count)]
    elif "," in text:
        return text.split(",")
    raise ValueError(f"{spec}: expected a range as in {{000..012}}, found {{{text}}}")


def _called(paths: list[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"the {len(paths)} shards from {paths[0]} on"


def _check_shards(paths: list[Path]) -> None:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(paths)} shards are not there: the first is {missing[0]}"
        )
    for path in paths:
        if path.name.lower().endswith(_COMPRESSED) or _starts_compressed(path):
            raise ValueError(
                f"{path} is compressed, so that no image in it can be reached by its place: "
                f"decompress it to a .tar first (images hardly shrink anyway)"
            )


def _starts_compressed(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(6).startswith(_COMPRESSED_STARTS)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


@dataclass(slots=True)
class _Index:
    """Where the images are: an entry for each, in columns."""

    shard: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    name: list[bytes] = field(default_factory=list)
    label: list[str | None] = field(default_factory=list)


class _Member(NamedTuple):
    name: str
    offset: int
    size: int


def _named_classes(path: Path, labels: list[str]) -> tuple[NDArray[np.int64], list[str]] | None:
    """Labels that are numbers of named classes; None where nobody named them."""
    if not path.is_file() or not all(label.isdecimal() for label in labels):
        return None
    try:
        names = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as names of classes: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None  # somebody else's file
    numbers = np.array([int(label) for label in labels], dtype=np.int64)
    if numbers.max() >= len(names):
        raise ValueError(
            f"{path} names {len(names)} classes, but there are labels up to {numbers.max()}: "
            f"expected a name for each"
        )
    return numbers, names


def _add_shard(index: _Index, number: int, path: Path, within: str) -> None:
    samples: dict[str, dict[str, _Member]] = {}
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for member in _members(path):
            folder, _, file = member.name.rpartition("/")
            stem, _, kind = file.partition(".")
            if not stem or not member.name.startswith(within):
                continue  # hidden files, such as the notes of macOS; those that are not meant
            sample = samples.setdefault(f"{folder}/{stem}", {})
            if sample.setdefault(kind.lower(), member) is not member:
                raise ValueError(f"{path} holds {member.name} twice: expected it once")
        for sample in samples.values():
            image = _image_of(path, sample)
            if image is not None:
                index.shard.append(number)
                index.offset.append(image.offset)
                index.size.append(image.size)
                index.name.append(image.name.encode(errors="surrogateescape"))
                index.label.append(_label_of(path, descriptor, sample))
    finally:
        os.close(descriptor)


def _members(path: Path) -> Iterator[_Member]:
    """The files in a tar file, by its headers; it must be sound up to its end."""
    with path.open("rb") as file:
        tar = None
        while True:
            try:
                tar = tar or tarfile.TarFile(fileobj=file)
                header = tar.next()
            except Exception as error:  # a damaged header makes tarfile stumble in many ways
                raise ValueError(f"{path} cannot be read as a tar file: {error}") from None
            if header is None:
                break
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            _check_name(path, header.name)
            if not (header.isreg() or header.isdir()) or header.issparse():
                raise ValueError(
                    f"{path} holds {header.name}, a link or a special file: expected plain files"
                )
            if header.isreg():
                yield _Member(header.name.removeprefix("./"), header.offset_data, header.size)
        # tarfile takes a file that just stops, or goes on with rubbish, for one that has ended.
        file.seek(tar.offset)
        rest = file.read(64 * _BLOCK)
    if len(rest) < _BLOCK or rest.strip(b"\0"):
        raise ValueError(
            f"{path} is damaged or cut off after {tar.offset} bytes: expected the zeros that end "
            f"a tar file, make or fetch it again"
        )


def _check_name(path: Path, name: str) -> None:
    # Nothing is extracted, but other programs will be given the same file.
    parts = name.replace("\\", "/").split("/")
    if not parts[0] or ".." in parts or re.match(r"[A-Za-z]:[\\/]", name):
        raise ValueError(f"{path} holds {name!r}, which leads out of it: expected plain names")


def _image_of(path: Path, sample: dict[str, _Member]) -> _Member | None:
    """0017.jpg is the image of 0017; 0017.mask.png only where nothing else is."""
    images = [kind for kind in sample if f".{kind}" in SUFFIXES]
    images = images or [kind for kind in sample if os.path.splitext(kind)[1] in SUFFIXES]
    if len(images) > 1:
        first, second = (sample[kind].name for kind in images[:2])
        raise ValueError(
            f"{path} holds {first} and {second}, which share a name up to its first dot: expected "
            f"one image for each such name"
        )
    return sample[images[0]] if images else None


def _label_of(path: Path, descriptor: int, sample: dict[str, _Member]) -> str | None:
    member = sample.get("cls") or sample.get("json")
    if member is None:
        return None
    content = os.pread(descriptor, min(member.size, _LARGEST_LABEL), member.offset)
    try:
        if "cls" in sample:
            return str(int(content))
        label = json.loads(content)
        label = label.get("label") if isinstance(label, dict) else None
        if label is None or (isinstance(label, int | str) and not isinstance(label, bool)):
            return None if label is None else str(label)
    except (ValueError, RecursionError):
        pass
    expected = "an integer" if "cls" in sample else 'JSON with a "label" that is a number or a name'
    raise ValueError(f"{path}: {member.name} cannot be read as a label, expected {expected}")
