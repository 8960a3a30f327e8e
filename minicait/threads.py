"""Work on threads, with results in order. NumPy and Pillow let go of the interpreter while they compute."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

import autograd as ag

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


@cache
def cpu_count() -> int:
    """The CPUs that this process may use: its affinity and a container's limit, not what the machine has."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such limit
        pass
    return count


def in_order(work: Callable[[Any], Any], items: Iterable[Any], workers: int, ahead: int | None = None) -> Iterator[Any]:
    """work(item) for all items on threads, results in order, with at most `ahead` of them (workers + 1) begun early."""
    pending: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="minicait")
    run = ag.inherit_modes(work)
    ahead = workers + 1 if ahead is None else ahead
    try:
        for item in items:
            pending.append(pool.submit(run, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also after an exception or Ctrl-C: what has not begun never will, what runs is waited for
        pool.shutdown(wait=True, cancel_futures=True)


def on_threads(work: Callable[[Any], Any], items: list[Any], threads: int) -> None:
    """work(item) for all items, each thread with a part of them that it need not ask for."""
    if threads < 2 or len(items) < 2 * threads:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="minicait") as pool:
        parts = [pool.submit(lambda own: [work(item) for item in own], items[i::threads]) for i in range(threads)]
        for part in parts:
            part.result()


@cache
def keep_freed_memory() -> None:
    """Ask the C library's allocator not to hand large freed arrays back to the system, where it can be asked.

    A step frees and allocates the same sizes again and again; fresh pages from the system come one fault at a time.
    """
    with suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        if mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 1 << 25):  # older ones allow no more
            mallopt(M_TRIM_THRESHOLD, 1 << 30)


def blas_threads(count: int) -> AbstractContextManager[Any]:
    """Products of matrices inside use so many threads: one each, where there are threads around them."""
    return _blas().limit(limits=count, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
