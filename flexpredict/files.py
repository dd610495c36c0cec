"""Files and folders: whole or not at all, one writer at a time; and where the cache is."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to; the file gets its own when all went well, and vanishes otherwise."""
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        name_failure(error, temporary, path)
        raise


def name_failure(error: BaseException, temporary: Path, path: Path) -> None:
    """A write that fails names a file that nobody has asked for, or, on a full disk, none."""
    if isinstance(error, OSError):
        known = str(temporary) if error.errno in _FULL else ""
        known = str(error.filename or known)
        if known.startswith(str(temporary)):
            error.filename, error.filename2 = known.replace(str(temporary), str(path), 1), None


def write_text(path: Path, text: str) -> None:
    with whole(path) as file:
        file.write_text(text, "utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    with whole(path) as file:
        file.write_bytes(content)


def check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out {out} exists and is not empty: choose another folder")


def make_writable(folder: Path) -> None:
    """A folder that is there, and takes files: before the work of which something is to be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from None


@contextmanager
def fresh_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name when all went well and vanishes otherwise."""
    check_empty(out)
    out = out.absolute()
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    except OSError as error:
        name_failure(error, temporary, out)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """A lock on a folder itself, which is gone with the process, whoever it has forked.

    BlockingIOError where another process has it.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    _locks.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # some file systems of networks know no locks
            pass
        yield
    finally:
        if descriptor in _locks:  # it is not, in a process that was forked
            _locks.remove(descriptor)
            os.close(descriptor)


_locks: set[int] = set()


def _let_go() -> None:
    """A forked process has the locks of its parent too, and would hold them for longer."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def cache_folder() -> Path:
    """Where things that can be made again are kept: FLEXPREDICT_CACHE, or the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FLEXPREDICT_CACHE") or Path(base) / "flexpredict")
