"""Exported folders to and from the Hugging Face hub, or any folder of one's own."""

import re
import shutil
from pathlib import Path

from flexpredict.files import check_empty, fresh_folder
from flexpredict.interop.extras import need

_FILES = ["*.json", "*.safetensors", "*.md", "*.onnx", "*.onnx.data", "*.pth.tar"]


def push(folder: Path, to: str, *, private: bool = False) -> str:
    """Uploads what `export` wrote; gives the address. A path (./x, /x, ~/x) is copied to."""
    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} is no exported folder: make one with flexpredict export")
    if (path := _local(to)) is not None:
        _copy(folder, path)
        return str(path)
    hub = need("huggingface_hub", "hf")
    try:
        api = hub.HfApi()
        api.create_repo(to, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=to, folder_path=folder, allow_patterns=_FILES))
    except Exception as error:  # of the hub, of the network below it, …
        raise RuntimeError(f"{to} could not be written: {_first_line(error)}") from None


def pull(source: str, out: Path, *, revision: str | None = None) -> Path:
    """Downloads a model folder, weights and descriptions only. A path is copied from."""
    check_empty(out)
    if (path := _local(source)) is not None:
        if not path.is_dir():
            raise ValueError(f"{source} is no folder: expected one that was exported or pushed")
        _copy(path, out)
        return out
    hub = need("huggingface_hub", "hf")
    try:
        there = hub.HfApi().list_repo_files(source, revision=revision)
        safe = any(name.endswith(".safetensors") for name in there)
        patterns = _FILES if safe else [*_FILES, "pytorch_model*.bin"]
        hub.snapshot_download(source, revision=revision, local_dir=out, allow_patterns=patterns)
    except Exception as error:
        raise RuntimeError(f"{source} could not be fetched: {_first_line(error)}") from None
    return out


def _local(place: str) -> Path | None:
    """`owner/name` is on the hub; what begins as a path is a path."""
    path = Path(place).expanduser()
    if place.startswith((".", "~")) or path.is_absolute():
        return path
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", place):
        raise ValueError(
            f"{place} is no model of the hub: expected owner/name, or a path as ./{place}"
        )
    return None


def _copy(folder: Path, out: Path) -> None:
    if out.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{out} is within {folder}: choose a place outside of it")
    with fresh_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
