"""One process or many under torchrun, and signals that ask a run to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who this process is among those of the run, and the device it computes on."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes."""
        if self.world == 1:
            return value
        value = value.detach().clone()
        dist.all_reduce(value)
        return value / self.world

    def any(self, flag: bool) -> bool:
        """Whether it is true on any process; all get the same answer."""
        if self.world == 1:
            return flag
        value = torch.tensor(int(flag))
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value)

    def first(self, text: str | None) -> str | None:
        """What the first process that has something to say says; all get the same answer."""
        if not self.any(text is not None):
            return None
        said: list[str | None] = [text]
        if self.world > 1:
            said = [None] * self.world
            dist.all_gather_object(said, text)
        return next(one for one in said if one is not None)

    def by_main(self, work: Callable[[], T]) -> T | None:
        """What the main process does while all wait; where it fails, all say why."""
        found, error = None, None
        if self.is_main:
            try:
                found = work()
            except (ValueError, OSError) as caught:
                error = caught
        said = self.first(None if error is None else str(error))
        if error is not None:
            raise error
        if said is not None:
            raise ValueError(said)
        return found


def pick_device(name: str | None = None) -> torch.device:
    """The device of that name; without one, a GPU if there is one."""
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}: use cpu, cuda or cuda:1, …") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch finds no CUDA GPU here")
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch finds no Apple GPU here")
    if place.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device {name!r} cannot be used: choose cpu, cuda, cuda:1, … or mps")
    return place


def device_name(place: torch.device) -> str:
    """As people know it."""
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type


@contextmanager
def processes(device: str | None = None) -> Iterator[Ranks]:
    """The process group that torchrun's environment describes, or one process without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = pick_device(device)
    if place.type == "cuda":
        place = place if place.index is not None else torch.device("cuda", local)
        torch.cuda.set_device(place)
    if world == 1:
        yield Ranks(0, 1, place)
        return
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), world, place)
    finally:
        if started:
            dist.destroy_process_group()


@contextmanager
def raised_by_sigterm(error: BaseException) -> Iterator[None]:
    """SIGTERM raises an error wherever no `StopSignal` notes it; a second one kills as usual."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, before)
        raise error

    if threading.current_thread() is not threading.main_thread():  # the caller handles signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StopSignal:
    """Notes SIGTERM and SIGINT instead of dying of them; a second one kills as usual."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: the caller handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
        for number in self._before:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
