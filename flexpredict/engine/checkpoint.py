"""Checkpoints: atomic, complete, safe to load.

    run/checkpoints/
      step-00012000/
        model.safetensors       encoder.*, predictor.*, target_encoder.*
        optimizer.safetensors   <parameter>.<slot>
        state.json              step, checksums of the files, and what else the caller needs
      latest                    the name of the newest complete one

Everything is written under a temporary name and then renamed; nothing is ever unpickled.
"""

import errno
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flexpredict.files import whole, write_text

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
LATEST = "latest"
_AT_ONCE = 1 << 24  # bytes


def save(
    run: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Writes the state after `step` steps, points `latest` at it and removes the oldest ones."""
    return write(run, step, model.state_dict(), _flatten(model, optimizer), state, keep=keep)


def write(
    run: Path,
    step: int,
    weights: Mapping[str, Tensor],
    slots: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """The same, of tensors by name; slots are the optimiser's."""
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}"
    for left_over in folder.glob(".step-*"):  # of a save that was killed
        shutil.rmtree(left_over)
    temporary = folder / f".{final.name}.{os.getpid()}"
    temporary.mkdir()
    _write_tensors(weights, temporary / MODEL)
    _write_tensors(slots, temporary / OPTIMIZER)
    sums = {name: _checksum(temporary / name) for name in (MODEL, OPTIMIZER)}
    (temporary / STATE).write_text(json.dumps({"step": step, **state, "checksums": sums}), "utf-8")
    _sync(temporary)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    write_text(folder / LATEST, final.name)
    for newer in complete(run):
        if newer.name > final.name:  # it could not be read, and the run has gone on without it
            shutil.rmtree(aside := folder / f"passed-over-{newer.name}", ignore_errors=True)
            newer.rename(aside)
    for old in complete(run)[:-keep]:
        shutil.rmtree(old)
    return final


def complete(run: Path) -> list[Path]:
    """All complete checkpoints of a run, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if (path / STATE).exists())


def restore(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Loads the newest readable checkpoint and gives its state, or None where there is none.

    Of those that are newer and cannot be read the state has a sentence each, as `unreadable`.
    """
    problems = []
    for folder in reversed(complete(run)):
        try:
            state: dict[str, Any] = json.loads((folder / STATE).read_text("utf-8"))
            for name, known in state.get("checksums", {}).items():
                if _checksum(folder / name) != known:
                    raise ValueError(f"{name} is not as it was written")
            weights = load_file(folder / MODEL)
            slots = load_file(folder / OPTIMIZER)
        except (OSError, ValueError, SafetensorError) as error:
            problems.append(f"{folder.name}: {error}")
            continue
        model.load_state_dict(weights)
        _unflatten(model, optimizer, slots)
        return state | {"unreadable": problems}
    if problems:
        raise ValueError(f"no checkpoint of {run} can be read: {'; '.join(problems)}")
    if (latest := run / "checkpoints" / LATEST).is_file():
        was = latest.read_text("utf-8")
        raise ValueError(
            f"{run} was at {was}, but its checkpoints are gone: put them back, or start again with "
            f"another --out"
        )
    return None


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint."""
    return found[-1] if (found := complete(run)) else None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def write_weights(
    path: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    with whole(path) as file:
        _write_tensors(weights, file, metadata)


def _write_tensors(
    state: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    places = Counter(tensor.data_ptr() for tensor in tensors.values())
    for name, tensor in tensors.items():  # one weight under two names: safetensors wants two
        if places[tensor.data_ptr()] > 1:
            tensors[name] = tensor.clone()
    try:
        save_file(tensors, path, dict(metadata) if metadata else None)
    except SafetensorError as error:  # as on a full disk
        raise OSError(errno.EIO, str(error), str(path)) from None
    path.chmod(0o644)  # safetensors leaves files that nobody else may read


def _flatten(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name; its scalars are tensors already."""
    return {
        f"{name}.{slot}": value
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state.get(parameter, {}).items()
    }


def _unflatten(
    model: nn.Module, optimizer: torch.optim.Optimizer, slots: Mapping[str, Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    for key, value in slots.items():
        name, _, slot = key.rpartition(".")
        parameter = parameters[name]
        # A step counter stays where the optimiser wants it: on the CPU unless it is fused.
        place = parameter.device if value.ndim or _fused(optimizer) else value.device
        optimizer.state[parameter][slot] = value.to(place)


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer.defaults.get("fused"))


def _checksum(path: Path) -> int:
    """CRC-32: a bit that a disk forgets is found out; a gigabyte takes a quarter of a second."""
    found = 0
    with path.open("rb") as file:
        while part := file.read(_AT_ONCE):
            found = zlib.crc32(part, found)
    return found


def _sync(folder: Path) -> None:
    """Makes sure that the files are on disk before their folder gets its final name."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
