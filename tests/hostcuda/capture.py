"""Streams that capture: what is asked of them is kept, and done whenever the graph is launched.

While a stream captures, what a graph cannot hold raises HostCudaError: an allocation, a synchronisation, a copy from or
to the host, and work on another stream, which would be done once instead of at every launch.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

from . import counters
from .unsupported import HostCudaError

_handles = itertools.count(0x100000, 16)
_graphs: dict[int, list[Callable[[], None]]] = {}
_stream: int | None = None  # the one that captures
_work: list[Callable[[], None]] = []


def begin(stream: int) -> None:
    global _stream
    if stream == 0:
        raise HostCudaError("the default stream cannot capture")
    if _stream is not None:
        raise HostCudaError("a stream is capturing already")
    _stream = stream
    _work.clear()


def end(stream: int) -> int:
    global _stream
    if stream != _stream:
        raise HostCudaError("this stream is not capturing")
    _stream = None
    handle = next(_handles)
    _graphs[handle] = list(_work)
    return handle


def is_capturing(stream: int) -> int:
    return int(stream == _stream)


def is_anywhere() -> bool:
    return _stream is not None


def instantiate(graph: int) -> int:
    handle = next(_handles)
    _graphs[handle] = _graphs[graph]
    return handle


def destroy(graph: int) -> None:
    del _graphs[graph]


def launch(graph: int, stream: int) -> None:
    refuse("the launch of a graph")
    for count in counters.active:
        count.graph_launches += 1
    active, counters.active[:] = list(counters.active), []  # what is in a graph costs the host nothing
    try:
        for work in _graphs[graph]:
            work()
    finally:
        counters.active[:] = active


def keep(work: Callable[[], None], stream: int, what: str) -> bool:
    """True if this is for the graph, and not to be done now."""
    if _stream is None:
        return False
    if stream != _stream:
        raise HostCudaError(f"{what} on another stream, while one is capturing")
    _work.append(work)
    return True


def refuse(what: str) -> None:
    if _stream is not None:
        raise HostCudaError(f"{what}, while a stream is capturing")


def copied_parameters(sizes: list[int], parameters: int) -> ctypes.Array:
    """An array of pointers to copies of a kernel's parameters."""
    pointers = zip((ctypes.c_void_p * len(sizes)).from_address(parameters), sizes, strict=True)
    copies = [ctypes.create_string_buffer(ctypes.string_at(p, size), size) for p, size in pointers]
    result = (ctypes.c_void_p * len(sizes))(*map(ctypes.addressof, copies))
    result.copies = copies  # type: ignore[attr-defined]  # they live as long as the pointers
    return result
