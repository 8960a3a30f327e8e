"""The machine: its CPUs and how to spread work over them, why it has no GPU, and how much memory a process takes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

import autograd as ag
from autograd import cuda

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
MADV_HUGEPAGE, HUGE_PAGE, RESERVED = 14, 1 << 21, 1 << 29


@cache
def cpu_count() -> int:
    """Number of CPUs this process may use: bounded by its affinity and a container's quota, not by the machine."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such limit
        pass
    return count


def why_no_gpu() -> str | None:
    """Reason why this process computes on the CPU although it looked for a GPU. None if it did not look for one.

    To look is to compute on it, which takes hundreds of megabytes there. Whoever asked for the CPU does not want that.
    """
    looked = "cupy" in sys.modules or find_spec("cupy") is None
    return cuda.why_unusable() if looked else None


def in_order(work: Callable[[Any], Any], items: Iterable[Any], workers: int, ahead: int | None = None) -> Iterator[Any]:
    """Yield work(item) for all items, computed on threads, in order; at most `ahead` (workers + 1) are in flight."""
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
    finally:  # also after an exception or Ctrl-C: cancel what has not started, wait for what is running
        pool.shutdown(wait=True, cancel_futures=True)


def on_threads(work: Callable[[Any], Any], items: Sequence[Any], threads: int) -> list[Any]:
    """[work(item) for item in items], each thread on a fixed share of them."""
    if threads < 2 or len(items) < 2 * threads:
        return [work(item) for item in items]
    results = [None] * len(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="minicait") as pool:
        parts = [pool.submit(lambda own: [work(item) for item in own], items[i::threads]) for i in range(threads)]
        for i, part in enumerate(parts):
            results[i::threads] = part.result()
    return results


@cache
def keep_freed_memory() -> None:
    """Ask glibc's allocator not to return large freed arrays to the system.

    A training step frees and allocates the same sizes again and again, and fresh pages cost one page fault each.
    """
    with suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        if mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 1 << 25):  # older versions allow no more
            mallopt(M_TRIM_THRESHOLD, 1 << 30)
            use_huge_pages()


def use_huge_pages() -> None:
    """Ask Linux for pages of 2 MB instead of 4 kB in the next half a gigabyte that is allocated: fewer TLB misses.

    The block is allocated, advised and freed before anything is written, so that it takes no memory, but it does take
    address space.
    """
    if resource is None or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    with suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        if block := libc.malloc(ctypes.c_size_t(RESERVED)):
            first = -(-block // HUGE_PAGE) * HUGE_PAGE
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(RESERVED - HUGE_PAGE), MADV_HUGEPAGE)
            libc.free(block)


def return_freed_memory() -> None:
    """Ask glibc's allocator to return all freed memory to the system, once: before a fork, which would inherit it."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def blas_threads(count: int) -> AbstractContextManager[Any]:
    """Limit matrix products inside the block to `count` threads: one each, where threads run around them."""
    return _blas().limit(limits=count, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def numerics(device: str = "cpu") -> dict[str, str]:
    """Versions and kernels that determine the last bits of a result: under others, they may differ."""
    blas = (
        f"{lib['internal_api']} {lib['version']} {lib.get('architecture', '')}"
        for lib in _blas().select(user_api="blas").info()
    )
    kernels = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # that NumPy chose for this CPU
    return {
        "device": device.partition(":")[0],
        "NumPy": np.__version__,
        "BLAS": ", ".join(sorted(blas)),
        "CPU kernels": " ".join(kernels) or "baseline",
        **({} if device == "cpu" else cuda.numerics(device)),
    }


def peak_megabytes() -> float | None:
    """Peak memory of this process and its forked children, shared pages counted once; None where it is unknown."""
    if sys.platform != "linux":
        if resource is None:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    try:  # on Linux, getrusage includes what the process had before it became this program
        peak, now, libraries = (_kilobytes("/proc/self/status", name) for name in ("VmHWM", "VmRSS", "RssFile"))
        kilobytes = peak - now + libraries
        # children keep freed memory, so their use now is their peak; Pss counts a page once among those that share it
        for process in ("self", *(child.pid for child in multiprocessing.active_children())):
            kilobytes += sum(_kilobytes(f"/proc/{process}/smaps_rollup", name) for name in ("Pss_Anon", "Pss_Shmem"))
        return kilobytes / 2**10
    except (OSError, StopIteration):  # a sandbox that hides it, or a process that has just ended
        return None


def _kilobytes(path: str, name: str) -> int:
    return next(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
