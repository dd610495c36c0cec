"""How much of the machine is ours."""

import os


def usable_cores() -> int:
    """Cores this process may use: fewer than there are under a scheduler or taskset."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
