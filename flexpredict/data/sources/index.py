"""The paths, labels and classes of a folder in one file, mapped into memory.

A folder of millions opens at once the next time, and all processes share the pages of one file.

    0      magic, SHA-256 of what follows up to 4096
    48     JSON: format, count, time of the walk, and of each section start, bytes and SHA-256
    4096   paths         all relative paths, one after the other
           ends          int64 (count): where each of them ends
           labels        int64 (count), or nothing
           classes       names with a zero byte after each
           folders       relative paths of all folders below, with a zero byte after each
           states        int64 (folders, 3): what `folder_state` said of each before it was read

A file added, removed or renamed changes its folder, so `is_fresh` asks for the state of folders and
never of files. A file whose bytes change keeps its place here, as it does in a walk.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from flexpredict.files import cache_folder

State = tuple[int, int, int]  # a folder's mtime_ns, ctime_ns and inode
ABSENT: State = (0, 0, 0)

# Checking a checksum means reading all of it. For a million images or so that is hundredths of a
# second; beyond, opening would wait for the disk, and reads the small sections only: writing ends
# with fsync and a rename, so that crashes leave no half file, and `verify` is there for the rest.
CHECKED_BYTES = 64 << 20

# Clocks of file systems tick in up to two seconds: a folder that changed just before it was read
# may change once more and keep its time.
SETTLED_NS = 2_000_000_000

_MAGIC = b"FLEXPREDICT-IDX\n"
_FORMAT = 2  # raised when a walk would find other images
_HEADER = 4096
_JSON = len(_MAGIC) + hashlib.sha256().digest_size
_SECTIONS = ("paths", "ends", "labels", "classes", "folders", "states")
_CONTENT, _SMALL = _SECTIONS[:4], _SECTIONS[3:]
_CHUNK = 1 << 16  # paths
_BLOCK = 1 << 22  # bytes


class DamagedIndex(ValueError):
    """No index, or none that can be trusted."""


class FolderIndex(Sequence[str]):
    """The relative paths of a folder's images, as a sequence; `labels` and `classes` beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # worker processes may stand elsewhere
        try:
            with path.open("rb") as file:
                header = _read_header(file)
                self._sections: dict[str, tuple[int, int, str]] = header["sections"]
                whole = os.fstat(file.fileno()).st_size <= CHECKED_BYTES
                _check(file, self._sections, _SECTIONS if whole else _SMALL)
                self._count = int(header["count"])
                self.walked_ns = int(header["walked_ns"])
                self.left_out = str(header["left_out"])
                # One number of a memoryview costs half of what one number of an array does.
                self._paths = self._map(file, "paths", np.uint8, "r").data
                self._ends = self._map(file, "ends", np.int64, "r").data
                # Pages are shared until somebody writes, which never reaches the file; torch takes
                # no arrays that are read-only.
                labels = self._map(file, "labels", np.int64, "c")
                self.labels: NDArray[np.int64] | None = labels if len(labels) else None
                self.classes = _split(self._map(file, "classes", np.uint8, "r"))
                self._folders = self._map(file, "folders", np.uint8, "r")
                self._states = self._map(file, "states", np.int64, "r").reshape(-1, 3)
        except OSError as error:
            raise DamagedIndex(f"{path} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedIndex(f"{path} is no index of this version: {error}") from None
        labelled = len(labels) == self._count if len(labels) else not self.classes
        if not self._count or len(self._ends) != self._count or not labelled:
            raise DamagedIndex(f"{path} is damaged: its sections do not fit together")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(self._count))]
        if place < 0:
            place += self._count
        if not 0 <= place < self._count:
            raise IndexError(f"{place} is outside of {self._count} images")
        start = self._ends[place - 1] if place else 0
        return str(self._paths[start : self._ends[place]], "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for first in range(0, self._count, _CHUNK):
            ends = self._ends[first : first + _CHUNK].tolist()
            chunk, before = self._paths[start : ends[-1]].tobytes(), start
            for end in ends:
                yield chunk[start - before : end - before].decode(errors="surrogateescape")
                start = end

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.digest())

    def digest(self) -> str:
        """Of the images' paths, labels and classes; not of the state of folders."""
        parts = [self._sections[name][2] for name in _CONTENT]
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def verify(self) -> None:
        """Read all of it and compare every checksum."""
        try:
            with self.path.open("rb") as file:
                sections = _read_header(file)["sections"]
                _check(file, sections, _SECTIONS)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise DamagedIndex(f"{self.path} is damaged: {error}") from None

    def is_fresh(self, root: Path) -> bool:
        """Whether every folder below `root` is as it was before it was read."""
        folders, known = _split(self._folders), self._states
        if not folders or len(known) != len(folders):
            return False
        if known[:, 1].max() > self.walked_ns - SETTLED_NS:
            return False
        base = os.path.join(root, "")
        return all(
            folder_state(base + folder) == tuple(state)
            for folder, state in zip(folders, known.tolist(), strict=True)
        )

    def _map(self, file: IO[bytes], name: str, dtype: type, mode: Any) -> NDArray[Any]:
        start, size, _ = self._sections[name]
        if not size:
            return np.empty(0, dtype)
        count = size // np.dtype(dtype).itemsize
        # A plain view: results of a memmap's arithmetic and indexing would be memmaps too.
        return np.asarray(np.memmap(file, dtype, mode, start, (count,)))


def open_index(root: Path) -> FolderIndex | None:
    """The index that the cache keeps of a folder, if it is sound and nothing has changed."""
    try:
        index = FolderIndex(index_path(root))
    except ValueError:
        return None
    return index if index.is_fresh(root) else None


def index_path(root: Path) -> Path:
    """Where the index of a folder is kept."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    try:
        return cache_folder() / "indexes" / f"{name}.index"
    except RuntimeError:  # as in containers that run under a number without a name
        raise ValueError("there is no home folder for a cache: set FLEXPREDICT_CACHE") from None


def folder_state(folder: str | Path) -> State:
    """What changes with the names in a folder; ABSENT if there is no folder."""
    try:
        status = os.stat(folder)
    except OSError:
        return ABSENT
    if not stat.S_ISDIR(status.st_mode):
        return ABSENT
    # Programs that copy folders set mtime back when they have finished; ctime nobody can set. Of
    # a link that leads elsewhere now, perhaps only the inode tells.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def write_index(
    path: Path,
    paths: Iterable[str],
    labels: NDArray[np.int64] | None,
    classes: Sequence[str],
    *,
    folders: Mapping[str, State] | None = None,
    walked_ns: int = 0,
    left_out: str = "",
) -> FolderIndex:
    """Write an index whole or not at all, and open it.

    Paths may come from anywhere; without the state of `folders` it is never fresh.
    """
    folders = folders or {}
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer: several processes may open the same folder at once.
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            ends, sections = _write_paths(file, paths)
            assert labels is None or len(labels) == len(ends)
            numbers = np.ascontiguousarray([] if labels is None else labels, np.int64)
            states = np.array(list(folders.values()), np.int64)
            for name, content in (
                ("ends", ends.data),
                ("labels", numbers.data),
                ("classes", _joined(classes)),
                ("folders", _joined(folders)),
                ("states", states.tobytes()),
            ):
                file.write(bytes(-file.tell() % 8))  # int64 wants its alignment
                start = file.tell()
                file.write(content)
                digest = hashlib.sha256(content).hexdigest()
                sections[name] = (start, file.tell() - start, digest)
            header = {
                "format": _FORMAT,
                "count": len(ends),
                "walked_ns": walked_ns,
                "left_out": left_out,
                "sections": sections,
            }
            body = json.dumps(header).encode().ljust(_HEADER - _JSON)
            file.seek(0)
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return FolderIndex(path)


def _write_paths(
    file: IO[bytes], paths: Iterable[str]
) -> tuple[NDArray[np.int64], dict[str, tuple[int, int, str]]]:
    """Write the section `paths` in chunks: an iterable may be longer than memory."""
    file.seek(_HEADER)
    digest, lengths, rest = hashlib.sha256(), [np.empty(0, np.int64)], iter(paths)
    while chunk := [path.encode(errors="surrogateescape") for path in islice(rest, _CHUNK)]:
        lengths.append(np.fromiter(map(len, chunk), np.int64, len(chunk)))
        content = b"".join(chunk)
        digest.update(content)
        file.write(content)
    ends = np.cumsum(np.concatenate(lengths))
    return ends, {"paths": (_HEADER, file.tell() - _HEADER, digest.hexdigest())}


def _read_header(file: IO[bytes]) -> dict[str, Any]:
    file.seek(0)
    block = file.read(_HEADER)
    body = block[_JSON:]
    if not block.startswith(_MAGIC) or block[len(_MAGIC) : _JSON] != hashlib.sha256(body).digest():
        raise ValueError("its header is damaged")
    header: dict[str, Any] = json.loads(body)
    if header["format"] != _FORMAT:
        raise ValueError(f"it has format {header['format']}, expected {_FORMAT}")
    start, size, _ = header["sections"][_SECTIONS[-1]]
    if os.fstat(file.fileno()).st_size != start + size:
        raise ValueError("its size is not what its header says")
    return header


def _check(
    file: IO[bytes], sections: Mapping[str, tuple[int, int, str]], names: Iterable[str]
) -> None:
    for name in names:
        start, size, expected = sections[name]
        digest = hashlib.sha256()
        file.seek(start)
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            digest.update(block)
            size -= len(block)
        if digest.hexdigest() != expected:
            raise ValueError(f"the checksum of its {name} is wrong")


def _joined(names: Iterable[str]) -> bytes:
    return b"".join(name.encode(errors="surrogateescape") + b"\0" for name in names)


def _split(content: NDArray[np.uint8]) -> list[str]:
    return content.tobytes().decode(errors="surrogateescape").split("\0")[:-1]


def _reopen(path: Path, digest: str) -> FolderIndex:
    """The index in another process, where a number must mean the same image."""
    index = FolderIndex(path)
    if index.digest() != digest:
        raise ValueError(
            f"{path} was written anew with other images while it was in use: start again"
        )
    return index
