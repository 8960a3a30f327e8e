"""Speed and memory of training and prediction on this machine, also beside PyTorch.

Each side runs in a process of its own (`worker`), because peak memory can only be measured per process. The sides take
turns, step by step: on a shared machine, only measurements of the same minute are comparable.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from ..models import create_model, find_model
from ..nn import DropPath
from .batch import CLASSES
from .folder import drawn_folder

OUT_OF_MEMORY = "out of memory"
WORK = {"train": "training step", "predict": "prediction", "folder": "prediction of JPEG files"}


@dataclass
class Measured:
    """Measurements of one side."""

    name: str
    seconds: list[float]  # of each step
    megabytes: float  # at the peak; on a GPU, of its memory
    parent_cpu: float = 0.0  # CPU seconds of a step, the mean: in the side's own process
    worker_cpu: float = 0.0  # and in its worker processes

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Job:
    """Work to measure: training steps or predictions on a batch of random images, or predictions of a folder."""

    model: str
    batch: int  # images in a step; for a folder, all its files
    work: str
    threads: int
    micro_batch: int | None = None  # None: the default of the model
    device: str = "cpu"
    precision: str = "fp32"  # or, on a GPU, "tf32" or "fp16"
    stochastic_depth: bool = False  # train with the drop rates of the preset; else nothing is dropped
    folder: str | None = None  # of JPEG files; `measure` draws one
    steps: int = 1  # in a turn; a GPU is waited for only after the last

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.precision != "fp32":
            raise ValueError(f"precision={self.precision} is for GPUs; a CPU is fastest with fp32")
        if self.stochastic_depth and self.work != "train":
            raise ValueError("stochastic depth is for training; a prediction drops nothing")
        if self.stochastic_depth and self.drop_path_rate == 0:
            raise ValueError(f"{self.model} is trained without stochastic depth")

    @property
    def drop_path_rate(self) -> float:
        return find_model(self.model)[1].drop_path_rate if self.stochastic_depth else 0.0

    def gigaflop(self, made: bool = False) -> float:
        """Floating-point operations of the matrix products in a step, in billions; a multiply-add counts as two.

        With stochastic depth it is the mean, without the branches that are dropped.

        made  only those that minicait makes, which may be fewer than the papers count
        """
        config = find_model(self.model)[1].changed(num_classes=CLASSES)
        multiply_adds: float = config.cost().multiply_adds
        if self.stochastic_depth:
            modules = create_model(self.model, drop_path_rate=self.drop_path_rate).named_modules()
            rate = statistics.mean(module.rate for _, module in modules if isinstance(module, DropPath))
            multiply_adds -= rate * (multiply_adds - config.changed(depth=0).cost().multiply_adds)
        if made:
            multiply_adds -= config.cost().left_out
        if self.work == "train":  # backward has two products for each of forward; images, cut into patches, need none
            multiply_adds += 2 * multiply_adds - 3 * math.prod(config.img_size) * config.dim
        return 2 * multiply_adds * self.batch / 1e9


class OutOfMemoryError(ValueError):
    """The batch is too large for the device."""


class Side:
    """A worker process, which answers "begin", "step" (the seconds of one), "cpu" (seconds so far) and "peak" (MB)."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        command = [sys.executable, "-m", "minicait.bench.worker", name, json.dumps(vars(job))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self.process.wait()
            killed = ", as the system does when memory runs out" if code == -9 else ""
            raise ValueError(f"the measurement of {self.name} ended early, with exit code {code}{killed}")
        result = json.loads(answer)
        if isinstance(result, str):
            raise (OutOfMemoryError if result.endswith(OUT_OF_MEMORY) else ValueError)(result)
        return result

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()  # without reading on: PyTorch's loader processes may hold it a few seconds longer
        with suppress(BrokenPipeError):  # a request that was never read
            self.process.stdin.close()


def measure(job: Job, names: Sequence[str], rounds: int) -> list[Measured]:
    """Measure all sides in turn, after an uncounted turn of each."""
    with drawn_folder(job.batch) if job.work == "folder" else nullcontext() as folder:
        sides: list[Side] = []
        try:
            for name in names:
                sides.append(Side(name, replace(job, folder=folder)))
            for request in ("begin", "step"):  # what cannot be measured is known before any step
                for side in sides:
                    side.ask(request)
            before = [side.ask("cpu") for side in sides]
            seconds = [[side.ask("step") for side in sides] for _ in range(rounds)]
            after, count = [side.ask("cpu") for side in sides], rounds * job.steps
            return [
                Measured(side.name, [row[i] for row in seconds], side.ask("peak"),
                         *((end - begin) / count for begin, end in zip(before[i], after[i], strict=True)))
                for i, side in enumerate(sides)
            ]  # fmt: skip
        finally:
            for side in sides:
                side.end()
