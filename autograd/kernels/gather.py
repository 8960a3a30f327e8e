"""Many arrays copied into as many others, in one launch on a GPU: the gradients of a model go to their places so.

A block copies a piece of an array. The addresses of all arrays are a table, which is copied to the GPU first, unless it
is the one of a step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .. import modes
from ..backend import Array, array_module, device_of, to_device
from .launch import compiled, on_gpu

PIECE, BLOCK = 4096, 256

# A row of `pieces` has the number of an array, the first value of the piece, and its length.
_GATHER = """
extern "C" __global__ void gather(const long long* addresses, const long long* pieces, long long count, bool add) {
    const long long* piece = pieces + 3 * (long long)blockIdx.x;
    const T* from = (const T*)addresses[piece[0]] + piece[1];
    T* to = (T*)addresses[count + piece[0]] + piece[1];
    for (int i = threadIdx.x; i < piece[2]; i += blockDim.x)
        to[i] = add ? wide_t(to[i]) + wide_t(from[i]) : wide_t(from[i]);
}
"""


def gather(arrays: Sequence[Array], outs: Sequence[Array], add: bool) -> None:
    """Copy or add arrays on a GPU to others, contiguous, of the same sizes and of one dtype."""
    xp, device = array_module(outs[0]), device_of(outs[0])
    whole = [xp.ascontiguousarray(a) for a in arrays]  # alive until the launch
    tables: list[Any] = [_on_gpu, _pieces]
    if modes.current().capture is not None:  # a graph has tables of its own, which live as long
        tables = [table.__wrapped__ for table in tables]
    addresses = tables[0](tuple(a.data.ptr for a in (*whole, *outs)), device)
    pieces = tables[1](tuple(a.size for a in whole), device)
    kernel = compiled(_GATHER, "gather", outs[0].dtype.name)
    kernel((len(pieces),), (BLOCK,), (addresses, pieces, np.int64(len(whole)), np.bool_(add)))


def can_gather(out: Array) -> bool:
    return on_gpu(out) and out.flags.c_contiguous


@lru_cache(1)
def _on_gpu(addresses: tuple[int, ...], device: str) -> Array:
    return to_device(np.array(addresses, np.int64), device)


@lru_cache(64)
def _pieces(sizes: tuple[int, ...], device: str) -> Array:
    rows = [
        (number, first, min(PIECE, size - first))
        for number, size in enumerate(sizes)
        for first in range(0, size, PIECE)
    ]
    return to_device(np.array(rows, np.int64).reshape(-1, 3), device)
