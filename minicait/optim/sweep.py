"""One pass over several large arrays at once, in chunks that stay in the cache: on threads, or by processes that share
the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np

from autograd.backend import Array

from ..machine import blas_threads, on_threads

CHUNK = 1 << 17  # values

Update = Callable[..., Any]  # update(start, chunk of every array); it must pickle, for processes


class Workers(Protocol):
    """Processes that share arrays with this one."""

    def share(self, arrays: Sequence[Array]) -> bool: ...

    def each(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]: ...


class Sweep(NamedTuple):
    update: Update
    arrays: tuple[Array, ...]
    threads: int

    @property
    def size(self) -> int:
        return self.arrays[0].size


processes: WeakSet[Workers] = WeakSet()  # all that this process has
_waiting: ContextVar[list[Sweep] | None] = ContextVar("waiting", default=None)


def sweep(update: Update, *arrays: Array, threads: int = 1) -> None:
    """Call update(start, *chunks) for the same chunk of all 1-d arrays, chunk by chunk. On a GPU they stay whole."""
    own, waiting = Sweep(update, arrays, threads), _waiting.get()
    if waiting is None:
        _run([own])
    else:
        waiting.append(own)


def results(update: Update, *arrays: Array, threads: int = 1) -> list[Any]:
    """[update(start, *chunks) for every chunk], in their order. `update` may call BLAS."""
    return _run([Sweep(update, arrays, threads)], blas=True)


@contextmanager
def together() -> Iterator[None]:
    """Run the sweeps of a block at its end, in one pass: all of them on a chunk, then on the next one."""
    token = _waiting.set([])
    try:
        yield
        _run_waiting()
    finally:
        _waiting.reset(token)


def each(
    work: Callable[[Any], Any], items: Sequence[Any], arrays: Sequence[Array], threads: int = 1, blas: bool = False
) -> list[Any]:
    """[work(item) for item in items], by processes if they share these arrays, else on threads.

    blas  work calls BLAS: with one thread, or the last digits would depend on the number of CPUs
    """
    _run_waiting()
    if len(items) > 1:
        for workers in tuple(processes):
            if workers.share(arrays):
                return workers.each(work, items)
    with blas_threads(1) if blas else nullcontext():
        return on_threads(work, items, threads)


def _run_waiting() -> None:
    if waiting := _waiting.get():
        sweeps = list(waiting)
        waiting.clear()
        for _, group in groupby(sweeps, lambda own: own.size):
            _run(list(group))


def _run(sweeps: Sequence[Sweep], blas: bool = False) -> list[Any]:
    """The results of the last of these sweeps over arrays of one size."""
    size, arrays = sweeps[0].size, [array for own in sweeps for array in own.arrays]
    chunk = CHUNK if isinstance(arrays[0], np.ndarray) else max(1, size)
    work = partial(_update_chunk, [own[:2] for own in sweeps], chunk)
    return each(work, range(0, size, chunk), arrays, max(own.threads for own in sweeps), blas)


def _update_chunk(sweeps: Sequence[tuple[Update, Sequence[Array]]], chunk: int, start: int) -> Any:
    for update, arrays in sweeps:
        result = update(start, *(array[start : start + chunk] for array in arrays))
    return result
