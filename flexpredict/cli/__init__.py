"""The command line: each command is a thin call into the API.

Exit codes: 0 done, 1 failed while working, 2 wrong input, 75 stopped by a signal after saving.
"""

import os
import sys

from flexpredict.cli import (
    bench,
    data,
    evaluation,
    exchange,
    health,
    pretraining,
    reporting,
    studying,
)
from flexpredict.cli.shared import app, is_main
from flexpredict.train.loop import Interrupted

__all__ = [
    "app",
    "bench",
    "data",
    "evaluation",
    "exchange",
    "health",
    "main",
    "pretraining",
    "reporting",
    "studying",
]


_OF_PATHS = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)


def main() -> None:
    """Runs a command; what goes wrong is one sentence on standard error and an exit code."""
    try:
        app()
    except ValueError as error:
        _fail(str(error), 2)
    except Interrupted as error:
        _fail(str(error), 75)
    except OSError as error:
        if error.filename is None or not isinstance(error, _OF_PATHS):
            _fail(str(error), 1)
        _fail(f"{error.filename} cannot be read or written: {error.strerror}", 2)
    except (FloatingPointError, RuntimeError) as error:
        _fail(str(error), 1)


def _fail(sentence: str, code: int) -> None:
    """Wrong input is wrong on every process alike: one says so. A failure is its own process's."""
    if is_main():
        print(f"flexpredict: {sentence}", file=sys.stderr)
    elif code == 1:
        print(f"flexpredict, process {os.environ['RANK']}: {sentence}", file=sys.stderr)
    sys.exit(code)
