"""Every weight of a file is accounted for: used, left out for a reason, or an error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flexpredict.interop.names import LEFT_OUT, Names, stacked

_MOST = 3  # names in an error


@dataclass(frozen=True, slots=True)
class Used:
    """Weights of all blocks are one line: `blocks.*.attn.qkv.weight`."""

    theirs: str
    ours: str
    shape: tuple[int, ...]
    dtype: str
    times: int


@dataclass(slots=True)
class Account:
    used: dict[str, list[Used]] = field(default_factory=dict)  # by part of the file
    keys: dict[str, int] = field(default_factory=dict)  # how many names that were
    left_out: dict[str, str] = field(default_factory=dict)  # name: reason
    notes: list[str] = field(default_factory=list)
    encoder: str = "target"  # which one the run folder gives

    def lines(self) -> list[str]:
        """For people."""
        lines = []
        for part, used in self.used.items():
            lines.append(f"{part}: all {self.keys[part]} keys used")
            for one in used:
                times = f" × {one.times}" if one.times > 1 else ""
                renamed = f" -> {one.ours}" if one.ours != one.theirs else ""
                size = "x".join(map(str, one.shape))
                lines.append(f"  {one.theirs}{renamed}  {size} {one.dtype}{times}")
        lines += [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        return lines + self.notes


def take(
    part: str,
    found: Mapping[str, Tensor],
    names: Names,
    expected: Mapping[str, tuple[int, ...]],
    account: Account,
) -> dict[str, Tensor]:
    """The weights of one part under our names, in float32.

    expected: the shape of each, by our names. What is missing, extra or of another shape is an
    error that names the first of them.
    """
    theirs = {name for group in names.values() for name in group}
    missing = sorted(theirs - found.keys())
    extra = []
    for name in sorted(found.keys() - theirs):
        reason = next((why for start, why in LEFT_OUT.items() if name.startswith(start)), None)
        if reason is None:
            extra.append(name)
        else:
            account.left_out[f"{part}.{name}"] = reason
    if missing or extra:
        said = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
        said += [f"{len(extra)} extra ({_some(extra)})"] if extra else []
        raise ValueError(
            f"{part} does not fit: of {len(theirs)} expected keys, {' and '.join(said)}"
        )
    weights, lines = {}, dict[tuple[str, str, tuple[int, ...], str], int]()
    for ours, group in names.items():
        tensor = stacked([found[name] for name in group])
        if tuple(tensor.shape) != expected[ours]:
            raise ValueError(
                f"{part} does not fit: {group[0]} is {_size(tensor.shape)}, expected "
                f"{_size(expected[ours])}"
            )
        weights[ours] = tensor.to(torch.float32)
        dtype = str(tensor.dtype).removeprefix("torch.")
        key = (_collapsed(" + ".join(group)), _collapsed(ours), tuple(tensor.shape), dtype)
        lines[key] = lines.get(key, 0) + 1
    account.used[part] = [Used(*key, times) for key, times in lines.items()]
    account.keys[part] = len(theirs)
    odd = {line.dtype for line in account.used[part]} - {"float32"}
    account.notes += [f"{part}: {dtype} weights are used as float32" for dtype in sorted(odd)]
    for ours, tensor in weights.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{part} is broken: {ours} holds values that are not finite")
    return weights


def _collapsed(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (", …" if len(names) > _MOST else "")


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
