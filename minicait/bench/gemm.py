"""The machine's throughput of matrix products, which bounds the time of a step from below."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..machine import blas_threads

SIDE = 768
ROUNDS = 8


def gemm_rate(threads: int) -> float:
    """Measure GFLOP/s of large float32 matrix products, one on each thread at a time: the best of several rounds."""
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((2, SIDE, SIDE), dtype=np.float32) for _ in range(threads)]
    best = 0.0
    with blas_threads(1), ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            started = time.perf_counter()
            list(pool.map(lambda pair: [pair[0] @ pair[1] for _ in range(4)], operands))
            best = max(best, 4 * threads * 2 * SIDE**3 / 1e9 / (time.perf_counter() - started))
    return best
