"""A batch of random images, the same on both sides of a measurement."""

from __future__ import annotations

import numpy as np

CLASSES = 10


def random_batch(side: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, 3, side, side)).astype(np.float32), rng.integers(0, CLASSES, batch)
