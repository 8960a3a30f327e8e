"""Figures that follow from measurements: share of the GEMM floor, ratios of two sides, and a model of more cores."""

from __future__ import annotations

import statistics
from typing import Any

from . import Job, Measured
from .cores import step_on_cores
from .gemm import gemm_rate


def summary(job: Job, sides: list[Measured]) -> dict[str, Any]:
    """All that is known of a job, as JSON: itself, its sides, and what follows from them."""
    own = {"sides": [vars(side) for side in sides]}
    return {**vars(job), **own, **bound(job, sides[0]), **ratios(*sides), **step_on_cores(job, sides[0])}


def bound(job: Job, side: Measured) -> dict[str, float]:
    """Lower bound on a CPU's time, that of the matrix products alone, and the share of its rate that was reached."""
    if job.device != "cpu":
        return {}
    rate = gemm_rate(job.threads)
    floor = job.gigaflop(made=True) / rate
    return {"gemm_gflops": rate, "floor": floor, "reached": floor / side.median}


def ratios(ours: Measured, other: Measured | None = None) -> dict[str, float]:
    """Median ratio of consecutive steps, and ratio of peak memory."""
    if other is None:
        return {}
    faster = statistics.median(b / a for a, b in zip(ours.seconds, other.seconds, strict=True))
    return {"times_as_fast": faster, "memory_ratio": ours.megabytes / other.megabytes}
