"""How much of the machine is ours."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: fewer than there are under a scheduler or taskset."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that may still be filled without pushing anything out: the container's limit counts."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = int(next(x for x in lines if x.startswith("MemAvailable:")).split()[1]) * 1024
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no such limit, or "max"
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        free = min(free, limit - used)
    return max(0, free)


def processes_to_start() -> int:
    """Processes to share work with: all cores under our own command.

    Somebody else's script may lack a main guard, and would run again in every process.
    """
    main = sys.modules["__main__"]
    name = main.__spec__.name if main.__spec__ else Path(getattr(main, "__file__", "")).stem
    return usable_cores() if name.partition(".")[0] == "flexpredict" else 1
