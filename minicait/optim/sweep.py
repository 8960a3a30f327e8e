"""One pass over several large arrays at once, in chunks that stay in the cache, on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from autograd.backend import Array

from ..machine import on_threads

CHUNK = 1 << 17  # values


def chunks(*arrays: Array) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """The same part of all 1-d arrays, one after the other, with its start. On a GPU they stay whole."""
    if not isinstance(arrays[0], np.ndarray):
        yield 0, arrays
        return
    for start in range(0, arrays[0].size, CHUNK):
        yield start, tuple(array[start : start + CHUNK] for array in arrays)


def sweep(update: Callable[[int, tuple[Array, ...]], None], *arrays: Array, threads: int = 1) -> None:
    """Call update(start, chunk of every array) for all chunks."""
    on_threads(lambda chunk: update(*chunk), list(chunks(*arrays)), threads)
