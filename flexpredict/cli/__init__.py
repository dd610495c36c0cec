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


def main() -> None:
    """Runs a command; what goes wrong is one sentence on standard error and an exit code."""
    try:
        app()
    except ValueError as error:
        _fail(str(error), 2)
    except Interrupted as error:
        _fail(str(error), 75)
    except (FloatingPointError, RuntimeError, OSError) as error:
        _fail(str(error), 1)


def _fail(sentence: str, code: int) -> None:
    """Wrong input is wrong on every process alike: one says so. A failure is its own process's."""
    if is_main():
        print(f"flexpredict: {sentence}", file=sys.stderr)
    elif code == 1:
        print(f"flexpredict, process {os.environ['RANK']}: {sentence}", file=sys.stderr)
    sys.exit(code)
