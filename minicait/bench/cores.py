"""CPU time of a training step, in the parent and in its worker processes, and a model of the step on more cores."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

from ..models import create_model
from ..train.micro_batch import default_micro_batch
from ..train.tree import even_ranges, leaf_count
from . import Job, Measured
from .batch import CLASSES

CORES = (2, 4, 8, 16, 32)


def cpu_seconds() -> tuple[float, float]:
    """CPU time so far: of this process, all its threads included, and of its worker processes."""
    return time.process_time(), sum(_cpu_of(child.pid) for child in multiprocessing.active_children())


def _cpu_of(pid: int | None) -> float:
    """CPU time of another process by its own clock: /proc/PID/stat counts in hundredths of a second only."""
    clock = ctypes.c_int()
    if sys.platform == "linux" and not ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        with suppress(OSError):  # it has just ended
            return time.clock_gettime(clock.value)
    return 0.0


class Step(NamedTuple):
    """A step's time on a number of cores, by the model, and how much of the cores' time is used."""

    cores: int
    seconds: float
    efficiency: float


def step_on_cores(job: Job, side: Measured) -> dict[str, Any]:
    """Model of the step's time on P cores, from CPU times measured on this machine; empty without worker processes.

    T(P) = parent + workers * (share of the batch that the busiest of P workers has)

    The parent works while all workers wait, and its threads count as if they ran one after the other. A worker has
    whole leaves of the tree of sums, each of whole pieces, so there are at most as many workers as leaves. What the
    model leaves out: cores that share caches, memory bandwidth or a power budget are slower together than apart.
    """
    if job.work != "train" or not side.worker_cpu:
        return {}
    model = create_model(job.model, CLASSES)
    pieces = cut(job.batch, job.micro_batch or default_micro_batch(model, job.batch))
    leaves = even_ranges(len(pieces), leaf_count(len(pieces), model.cost().parameters))
    images = [sum(pieces[i] for i in leaf) for leaf in leaves]
    steps = []
    for cores in CORES:
        seconds = side.parent_cpu + side.worker_cpu * busiest(images, cores) / job.batch
        steps.append(Step(cores, seconds, (side.parent_cpu + side.worker_cpu) / (cores * seconds)))
    return {"pieces": len(pieces), "leaves": len(leaves), "on_cores": [step._asdict() for step in steps]}


def cut(batch: int, micro_batch: int) -> list[int]:
    """Number of images in every piece of a batch."""
    return [min(micro_batch, batch - start) for start in range(0, batch, micro_batch)]


def busiest(leaves: list[int], cores: int) -> int:
    """Number of images of the worker that has most, if `cores` workers share leaves with these numbers of images."""
    return max(sum(leaves[i] for i in own) for own in even_ranges(len(leaves), min(cores, len(leaves))))
