"""How much of the machine is ours."""

import os
import sys
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: fewer than there are under a scheduler or taskset."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_to_start() -> int:
    """Processes to share work with: all cores under our own command.

    Somebody else's script may lack a main guard, and would run again in every process.
    """
    main = sys.modules["__main__"]
    name = main.__spec__.name if main.__spec__ else Path(getattr(main, "__file__", "")).stem
    return usable_cores() if name.partition(".")[0] == "flexpredict" else 1
