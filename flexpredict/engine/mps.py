"""Several processes on one GPU at once: NVIDIA's MPS, where it is installed.

Without it processes take turns, and a small model leaves most of a GPU idle during its turn.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_USUAL = Path("/tmp/nvidia-mps/control")  # of a daemon that somebody else has started
_SECONDS = 60
_TRY = "import torch; torch.ones(8, device='cuda').sum().item()"


@contextmanager
def sharing() -> Iterator[dict[str, str]]:
    """Variables for processes that are to share a GPU; none where they cannot, or do already.

    The daemon is ours alone, and goes when we do.
    """
    control = shutil.which(_CONTROL)
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ or _USUAL.exists():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="flexpredict-mps-") as folder:
        found = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"
        }  # fmt: skip
        for path in found.values():
            Path(path).mkdir()
        started = _works([control, "-d"], found)
        try:
            works = started and _works([sys.executable, "-c", _TRY], found)
            yield found if works else {}
        finally:
            if started:
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(
                        [control], input=b"quit\n", env=os.environ | found, timeout=_SECONDS,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                    )  # fmt: skip


def _works(command: list[str], variables: dict[str, str]) -> bool:
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            command, env=os.environ | variables, timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return found.returncode == 0
    return False
