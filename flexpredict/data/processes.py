"""Work on all images of a source, shared among processes."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

import numpy as np

from flexpredict.data.cores import processes_to_start
from flexpredict.data.sources import Source

_T = TypeVar("_T")
_R = TypeVar("_R")
# Fewer images or bytes are done before other processes have started, which takes seconds.
_FEW, _LITTLE = 500, 200_000_000


def workers_for(source: Source, workers: int | None) -> int:
    """How many processes to use where nobody says."""
    if workers is not None:
        return max(1, workers)
    few = len(source) < _FEW or _encoded_bytes(source) < _LITTLE
    return 1 if few else processes_to_start()


def _encoded_bytes(source: Source) -> int:
    """About how many there are to decode: none where images are pixels already.

    Those would also be copied into every process.
    """
    looked_at = range(0, len(source), max(1, len(source) // 16))
    total = 0
    for index in looked_at:
        with suppress(OSError):
            data = source.read(index)
            if isinstance(data, np.ndarray):
                return 0
            total += len(data)
    return total * len(source) // len(looked_at)


def in_processes(
    task: Callable[[Source, _T], _R], source: Source, items: Iterable[_T], workers: int
) -> Iterator[_R]:
    """Results of `task(source, item)`, as they are finished; a few items are under way at a time.

    Every process gets the source once. With one worker all is done here, in order.
    """
    if workers == 1:
        for item in items:
            yield task(source, item)
        return
    rest = iter(items)
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(source,)
    ) as pool:
        running: set[Future[_R]] = set()
        try:
            while True:
                for item in islice(rest, 2 * workers - len(running)):
                    running.add(pool.submit(_with_source, task, item))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            for future in running:
                future.cancel()


_source: Source | None = None  # of this process


def _begin(source: Source) -> None:
    global _source
    _source = source
    Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Workers of a process that was killed would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _with_source(task: Callable[[Source, _T], _R], item: _T) -> _R:
    assert _source is not None
    return task(_source, item)
