"""CUDA graphs: record a function's GPU work once, then repeat it in a single launch.

A training step of CaiT is some 1,800 launches and products, each of which costs the host more time than a small one
costs the GPU. A graph of them costs one launch. In return, nothing about it can change: a launch reads and writes the
addresses that were recorded, with the sizes that were recorded. So the function gets its inputs in arrays that stay
where they are, and the caller copies new values into them.

    graph = Graph(lambda: step(images), device)     # `images` is an array on that GPU
    images[...] = others
    graph.launch()                                  # computes graph.result anew

Values of Python, and arrays that the function copies from the host, are constants from then on, random numbers that
NumPy draws included. It must not look at values on the GPU, nor draw by `autograd.random` on the host: either raises
CaptureError.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np

from . import cublas, cuda, modes
from .backend import Array

MOST_RUNS = 6  # after the first, the one that is recorded included
ALIGNMENT = 256  # bytes, as of CUDA's own allocations
_one_at_a_time = Lock()  # captures share a handle of cuBLAS


class Capture:
    """The graph that is being made: operations find it in `modes.current().capture`.

    Arrays from the host are constants. A copy inside the graph would be repeated by every launch; instead they are
    copied once, when it is made, to memory that nothing else in the graph uses.
    """

    def __init__(self, blas: cublas.StreamBlas) -> None:
        self.blas = blas
        self.bytes = 0  # of all constants, as the first run finds them
        self.memory: Array | None = None  # for those of the runs after it
        self.recording = False
        self.values: list[tuple[Array, np.ndarray]] = []  # of the run that is recorded

    def constant(self, x: Any) -> Array:
        """`x` on the GPU."""
        x = np.array(x)  # nobody edits it until it is copied
        size = -(-x.nbytes // ALIGNMENT) * ALIGNMENT
        if self.memory is None:
            self.bytes += size
            return cuda.module().array(x)
        if size > len(self.memory):
            raise modes.CaptureError("a CUDA graph cannot hold constants of which there are more in every run")
        there = self.memory[: x.nbytes].view(x.dtype).reshape(x.shape)
        self.memory = self.memory[size:]
        if self.recording:
            self.values.append((there, x))
        else:
            there.set(x)
        return there


class Pool:
    """Memory of one graph. A launch uses the same addresses as the one before, so nobody else may have them."""

    def __init__(self, number: int) -> None:
        self.number = number  # of the GPU
        self._device = cuda.module().cuda.Device(number)
        self.recording = False
        self._largest = 0  # bytes of an array
        self._pool = cuda.module().cuda.MemoryPool(self._grow)

    def malloc(self, size: int) -> Any:
        self._largest = max(self._largest, size)
        return self._pool.malloc(size)

    def _grow(self, size: int) -> Any:
        """Memory from the GPU. If that is full, CuPy would give blocks back that a recorded kernel uses."""
        cupy = cuda.module()
        try:
            return cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if self.recording:
                raise modes.CaptureError("a CUDA graph cannot hold more memory: the GPU is full") from error
            raise

    def used_bytes(self) -> int:
        return self._pool.used_bytes()

    def total_bytes(self) -> int:
        return self._pool.total_bytes()

    def reserve(self) -> None:
        """Add a spare block: where the pool finds room depends on what was there before."""
        enough, taken = self.total_bytes() + 2 * self._largest, []
        while self.total_bytes() < enough:
            taken.append(self._pool.malloc(2 * self._largest))

    def free(self) -> None:
        if sys.is_finalizing():  # then the system frees all memory, and modules may be gone
            return
        with self._device:
            self._pool.free_all_blocks()  # CuPy does not, when a pool goes


class Graph:
    """The launches and products of `work()` on a GPU, to be repeated; `result` is what it returned.

    `work` first runs as usual, so that all kernels are compiled and all memory is there, and then to be recorded.
    """

    def __init__(self, work: Callable[[], Any], device: str) -> None:
        cupy, number = cuda.module(), cuda.device_id(device)
        cuda.make_current(number)
        self.pool, capture = Pool(number), Capture(cublas.stream_blas(number))
        cuda.graph_pools.add(self.pool)
        stream = capture.blas.stream
        cupy.cuda.get_current_stream().synchronize()  # the inputs are there
        own_memory = cupy.cuda.using_allocator(self.pool.malloc)
        try:
            with _one_at_a_time, stream, own_memory, modes.changed(capture=capture):
                self._constants = self._warm_up(work, capture)
                stream.synchronize()
                self.result, self._graph = self._record(work, capture, stream)
        except BaseException as error:
            with suppress(Exception):
                stream.synchronize()  # or what is under way would write into what the caller uses
            traceback.clear_frames(error.__traceback__)  # which hold arrays
            capture.memory = None
            self.pool.free()
            raise
        for there, value in capture.values:
            there.set(value)

    def __del__(self) -> None:
        if hasattr(self, "_graph"):
            del self.result, self._constants, self._graph
            self.pool.free()

    def _warm_up(self, work: Callable[[], Any], capture: Capture) -> Array:
        """Run until the pool has enough, and return memory for constants."""
        work()
        memory = capture.memory = cuda.module().empty(capture.bytes * MOST_RUNS, np.uint8)
        for _ in range(MOST_RUNS - 1):
            held = self.pool.total_bytes()
            work()
            if self.pool.total_bytes() == held:
                break
        self.pool.reserve()
        return memory

    def _record(self, work: Callable[[], Any], capture: Capture, stream: Any) -> tuple[Any, Any]:
        capture.recording = self.pool.recording = True
        stream.begin_capture()
        try:
            result = work()
        except BaseException:
            with suppress(Exception):  # CUDA may call the capture invalid, which is known by then
                stream.end_capture()
            raise
        return result, stream.end_capture()

    def launch(self) -> None:
        """Repeat everything, on the current stream."""
        self._graph.launch()
