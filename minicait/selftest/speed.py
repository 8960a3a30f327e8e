"""Memory of the self-test, and speed and memory of training and prediction, beside PyTorch where it is installed."""

from __future__ import annotations

import gc
import statistics
import time
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

import autograd as ag
from autograd import cuda, random
from autograd.backend import to_device
from autograd.random import Stream

from ..bench import Job, Measured, OutOfMemoryError, measure
from ..bench.batch import CLASSES, random_batch
from ..machine import cpu_count, peak_megabytes
from ..models import create_model
from ..train import Trainer
from ..train.gradients import AS_GRAPH
from ..train.recipe import PRODUCTS
from ..train.step_graph import NO_MEMORY
from .block import ALLOWED as DIFFERENCE
from .block import relative_difference
from .report import DIFFERS, OK, Finding

MODEL = "cait_xxs24_224"
STEPS = 10  # on a GPU without a wait in between
ROUNDS, WARM_UP = 3, 2
SCALE = 1024.0  # of the loss, so that small gradients do not vanish in float16
INSTALL = "PyTorch and timm are not installed: pip install -e '.[compare]'"


def memory(device: str) -> Finding:
    """Peak memory of this process, and memory of the GPU."""
    peak = peak_megabytes()
    process = "the peak of this process is unknown here" if peak is None else f"{peak:.0f} MB in this process"
    if device == "cpu":
        return Finding(OK, process)
    used, held, free, total = (count / 2**20 for count in cuda.memory(device))
    lines = [f"CuPy's memory pool: {used:.1f} MB in use, {held:.1f} MB held, no less than the peak",
             f"the GPU: {free:.0f} of {total:.0f} MB are free"]  # fmt: skip
    release(device)
    return Finding(OK, f"{process}; on the GPU {held:.0f} MB held by CuPy, of {total:.0f} MB", lines)


def release(device: str) -> None:
    """Return the memory of this process to the GPU, for the processes that are measured."""
    gc.collect()
    cupy = cuda.module()
    with cupy.cuda.Device(cuda.device_id(device)):
        cupy.get_default_memory_pool().free_all_blocks()


def sizes(device: str) -> list[int]:
    """Batches to try: the first for which there is memory is measured."""
    return [4] if device == "cpu" else [1 << power for power in range(7, -1, -1)]


def measured(device: str, work: str, precision: str = "fp32") -> Finding:
    """Throughput and memory of steps that follow each other without a wait for the GPU in between."""
    for size in sizes(device):
        try:
            return _measured(Job(MODEL, size, work, cpu_count(), None, device, precision, steps=_steps(device)))
        except OutOfMemoryError as error:
            reason = error
    raise reason


def _steps(device: str) -> int:
    return 1 if device == "cpu" else STEPS


def _measured(job: Job) -> Finding:
    beside, sides = INSTALL, []
    if find_spec("torch") is not None and find_spec("timm") is not None:
        try:
            sides = measure(job, ["minicait", "timm"], ROUNDS)
            beside = f"PyTorch {_rate(job, sides[1])}"
        except OutOfMemoryError:
            raise
        except ValueError as error:  # if minicait was the cause, the next line raises again
            beside = str(error)
    sides = sides or measure(job, ["minicait"], ROUNDS)
    lines = [f"{side.name}: seconds {' '.join(f'{s:.4f}' for s in side.seconds)}, peak {side.megabytes:.0f} MB"
             for side in sides]  # fmt: skip
    return Finding(OK, f"batch {job.batch}: {_rate(job, sides[0])}; {beside}", lines)


def _rate(job: Job, side: Measured) -> str:
    return f"{job.batch / side.median:.1f} images/s, {side.megabytes:.0f} MB"


class Launched(NamedTuple):
    """Passes forward and backward of one batch, launched in one way."""

    times: list[tuple[float, float]]  # seconds of the host until the last launch, and of the GPU by events
    gradients: np.ndarray
    how: str  # they were launched


def host_and_gpu(device: str, precision: str = "fp16") -> Finding:
    """Compare the times of the host and the GPU, kernel by kernel and as a CUDA graph: the longer limits throughput."""
    size, eager, graph = _largest(device, precision)
    release(device)
    apart = relative_difference(graph.gradients, eager.gradients)
    lines = [f"{way.how}: host {1e3 * a:.1f} ms, GPU {1e3 * b:.1f} ms" for way in (eager, graph) for a, b in way.times]
    told = [f"{way.how}: host {1e3 * host:.1f} ms, GPU {1e3 * gpu:.1f} ms"
            for way in (eager, graph) for host, gpu in [_medians(way)]]  # fmt: skip
    host, gpu = _medians(graph)
    limit = "the host: the GPU waits for launches" if gpu < 1.1 * host else "the GPU"
    allowed = DIFFERENCE[precision]
    result = (
        f"batch {size}: {'; '.join(told)}; gradients {apart:.1e} apart ({allowed:.0e} allowed); the limit is {limit}"
    )
    as_it_should = apart <= allowed and graph.how == AS_GRAPH  # False for NaN
    return Finding(OK if as_it_should else DIFFERS, result, lines)


def _largest(device: str, precision: str) -> tuple[int, Launched, Launched]:
    """The largest batch for which there is memory, launched without a graph and with one."""
    for size in sizes(device):
        try:
            eager, graph = (launched(device, size, precision, way) for way in (False, True))
        except Exception as error:
            if not cuda.is_out_of_memory(error) or size == 1:
                raise
            cuda.free_memory(error, device)
            continue
        if size == 1 or not graph.how.endswith(NO_MEMORY):
            return size, eager, graph
        release(device)
    raise AssertionError("there is no size to try")


def _medians(way: Launched) -> tuple[float, ...]:
    return tuple(statistics.median(column) for column in zip(*way.times, strict=True))


def launched(device: str, size: int, precision: str, graph: bool) -> Launched:
    """Run forward and backward several times on one batch."""
    event = cuda.module().cuda.Event
    model = create_model(MODEL, CLASSES, drop_path_rate=0.0)
    trainer = Trainer(model, device=device, precision=precision, graph=graph)
    images, labels = (to_device(array, device) for array in random_batch(model.img_size[0], size))
    times = []
    for number in range(WARM_UP + ROUNDS):
        first, last = event(), event()
        first.record()
        started = time.perf_counter()
        with random.using(Stream(0)), ag.autocast(PRODUCTS[precision]):
            _, gradients = trainer.gradients(trainer.objective, images, {"labels": labels}, SCALE)
        host = time.perf_counter() - started
        last.record()
        last.synchronize()
        if number >= WARM_UP:
            times.append((host, cuda.module().cuda.get_elapsed_time(first, last) / 1e3))
    return Launched(times, to_device(gradients.array, "cpu"), trainer.gradients.graph_line() or "on the CPU")
