"""How much of the machine is ours."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: fewer than there are under a scheduler or taskset."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_taken(during: float = 0.2) -> float:
    """How many of them others keep busy, while this process waits; 0 where nobody can tell."""
    try:
        before = _ticks()
        time.sleep(during)
        after = _ticks()
    except (OSError, ValueError, AttributeError):
        return 0.0
    taken = 0.0
    for core in before.keys() & after.keys():
        passed = [now - then for then, now in zip(before[core], after[core], strict=True)]
        if whole := sum(passed):  # some containers show nothing but zeros
            taken += 1 - sum(passed[3:5]) / whole  # idle, and waiting for disks
    return taken


def _ticks() -> dict[str, list[int]]:
    """Of each usable core, by what it did with them."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text("utf-8").splitlines()]
    return {name: [int(x) for x in rest[:8]] for name, *rest in lines if name in names}


def free_memory() -> int:
    """Bytes that may still be filled without pushing anything out; 0 where nobody can tell."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        free = int(next(x for x in lines if x.startswith("MemAvailable:")).split()[1]) * 1024
    except (OSError, StopIteration):
        if not hasattr(os, "sysconf"):
            return 0
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return max(0, min([free, *_left_to_groups()]))


def _left_to_groups() -> Iterator[int]:
    """What the limits of this process's control groups (v2), each within the next, still allow."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
        inner = next(line for line in lines if line.startswith("0::")).removeprefix("0::")
        root = Path("/sys/fs/cgroup")
        group = root / inner.lstrip("/")
        for place in (group, *group.parents):
            with suppress(OSError, ValueError, StopIteration):  # no such file, or "max"
                limit = int((place / "memory.max").read_text("utf-8"))
                used = int((place / "memory.current").read_text("utf-8"))
                lines = (place / "memory.stat").read_text("utf-8").splitlines()
                cached = int(next(x for x in lines if x.startswith("inactive_file ")).split()[1])
                yield limit - used + cached
            if place == root:
                break


def processes_to_start() -> int:
    """Processes to share work with: all cores under our own command.

    Somebody else's script may lack a main guard, and would run again in every process.
    """
    main = sys.modules["__main__"]
    name = main.__spec__.name if main.__spec__ else Path(getattr(main, "__file__", "")).stem
    return usable_cores() if name.partition(".")[0] == "flexpredict" else 1


def threads_each(processes: int) -> int:
    """How many threads each of some processes has: its share of the cores, or what the user said
    if that is less."""
    share = max(1, usable_cores() // processes)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(asked)) if asked.isdecimal() and int(asked) else share
