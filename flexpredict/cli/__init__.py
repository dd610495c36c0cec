"""The command line: each command is a thin call into the API.

Exit codes: 0 done, 1 failed while working, 2 wrong input, 75 stopped by a signal after saving,
130 by Ctrl-C where there is nothing to save.
"""

import errno
import os
import re
import sys
import warnings
from typing import Any, TextIO

import typer
from typer.models import CommandInfo, TyperInfo

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
from flexpredict.config import Settings
from flexpredict.notice import Notice
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

# What `flexpredict --help` shows, in the order of the work.
PANELS = {
    "Pretrain": ["demo", "pretrain", "recipes", "bench", "data"],
    "Is it well, and what has it learnt?": ["doctor", "report", "figures"],
    "Evaluate": [
        "knn", "probe", "logistic", "finetune", "boxes", "shifts", "video", "features", "table"
    ],
    "Compare": ["study"],
    "Weights in and out": ["import", "export", "push", "pull"],
}  # fmt: skip

_OUT_OF_MEMORY = (
    "memory ran out: to pretrain, lower batch_size, or go on from the last checkpoint by --resume "
    "with --set accumulate=2 (4, 8, …) or --set grad_checkpointing=true (flexpredict bench --fit "
    "says how many images fit at once); else choose a smaller --image-size, or --device cpu"
)
_NO_ANSWER = (
    "another process of the run does not answer, and says why itself if it could; --resume goes on "
    "from the newest checkpoint"
)
_LOST = ("gloo/transport", "closed by peer", "remote process", "Watchdog caught")  # of torch
_plainly = warnings.showwarning
_Usage: Any = typer.BadParameter.__base__  # of all that is wrong with words on a command line
_CTRL_C = 130  # as shells have it
_OF_PATHS = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)


def _sort_help() -> None:
    """Every command has its place in PANELS; one that has none is an error."""
    order = [(panel, name) for panel, names in PANELS.items() for name in names]
    places = {name: (place, panel) for place, (panel, name) in enumerate(order)}
    shown: list[CommandInfo | TyperInfo] = [*app.registered_groups]
    shown += [one for one in app.registered_commands if not one.hidden]
    for one in shown:
        _, one.rich_help_panel = places[_name(one)]
    app.registered_commands.sort(key=lambda one: places.get(_name(one), (len(order), ""))[0])


def _name(command: CommandInfo | TyperInfo) -> str:
    return command.name or command.callback.__name__  # type: ignore[union-attr]


_sort_help()


def main() -> None:
    """Runs a command; what goes wrong is one sentence on standard error and an exit code."""
    warnings.showwarning = _show
    code: object = None
    try:
        code = app(standalone_mode=False)
    except _Usage as error:
        sentence = error.format_message().strip().rstrip(".").replace("Value error, ", "")
        if not sentence:  # no words at all: its help was shown
            sys.exit(2)
        command = error.ctx.command_path if error.ctx else "flexpredict"
        takes = [name for one in error.ctx.command.params for name in one.opts] if error.ctx else []
        if "extra argument" in sentence and "=" in sentence and "--set" in takes:
            sentence += "; a setting is given as --set KEY=VALUE"
        unknown = re.match(r"No such option:? '?--([\w-]+)", sentence)  # by click's version
        wrong = unknown[1].replace("-", "_") if unknown else ""
        if wrong in Settings.model_fields and "--set" in takes:
            sentence = f"--{wrong} is no option but a setting: --set {wrong}=…"
        _fail(f"{sentence}; see {command} --help", 2)
    except typer.Abort:  # how older versions of typer say it
        code = _CTRL_C
    except ValueError as error:
        _fail(str(error), 2)
    except Interrupted as error:
        _fail(str(error), error.EXIT_CODE)
    except OSError as error:
        if error.filename is None:
            _fail(error.strerror or str(error), 1)
        what = f"{error.filename} cannot be read or written: {error.strerror}"
        _fail(what, 2 if isinstance(error, _OF_PATHS) or error.errno == errno.EROFS else 1)
    except (FloatingPointError, RuntimeError, MemoryError) as error:
        sentence = _OUT_OF_MEMORY if _is_of_memory(error) else str(error)
        if any(words in sentence for words in _LOST):
            sentence = f"{_NO_ANSWER} ({sentence})"
        _fail(sentence, 1)
    if code == _CTRL_C:
        _fail("stopped before it was done; what keeps its work goes on if asked again", _CTRL_C)
    sys.exit(code if isinstance(code, int) else 0)


def _is_of_memory(error: Exception) -> bool:
    """A GPU's is a class of its own, a CPU's is a RuntimeError like any other."""
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, MemoryError) or "can't allocate memory" in str(error)
    )


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are for the person at the shell, who need not know where they come from."""
    if issubclass(category, Notice):
        if is_main():
            print(f"flexpredict: {message}", file=sys.stderr, flush=True)
    else:
        _plainly(message, category, filename, lineno, file, line)


def _fail(sentence: str, code: int) -> None:
    """Wrong input is wrong on every process alike: one says so. A failure is its own process's."""
    if is_main():
        print(f"flexpredict: {sentence}", file=sys.stderr)
    elif code == 1:
        print(f"flexpredict, process {os.environ['RANK']}: {sentence}", file=sys.stderr)
    sys.exit(code)
