"""What this machine can do at most: its rate of multiplying matrices, on which the least time of a step follows."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..machine import blas_threads

SIDE = 768
ROUNDS = 8


def gemm_rate(threads: int) -> float:
    """GFLOP/s of float32 products of large matrices, one on each thread at the same time; the best of some rounds."""
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((2, SIDE, SIDE), dtype=np.float32) for _ in range(threads)]
    best = 0.0
    with blas_threads(1), ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            before = time.perf_counter()
            list(pool.map(lambda pair: [pair[0] @ pair[1] for _ in range(4)], operands))
            best = max(best, 4 * threads * 2 * SIDE**3 / 1e9 / (time.perf_counter() - before))
    return best
