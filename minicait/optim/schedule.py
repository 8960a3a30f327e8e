"""The learning rate over a run: linear warm-up, then half a cosine."""

from __future__ import annotations

import math


def learning_rate(
    step: int, total: int, warmup: int, peak: float, warmup_from: float = 1e-6, final: float = 1e-5
) -> float:
    """Learning rate at a step (from 0): linear up to the peak over `warmup` steps, then half a cosine to `final`.

    As in the reference, the cosine counts from the first step, not from the end of the warm-up.
    """
    if step < warmup:
        return warmup_from + (peak - warmup_from) * step / warmup
    return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * min(1, step / max(1, total))))
