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
from dataclasses import dataclass
from typing import Any

from ..models import find_model

WORK = ("train", "predict")


@dataclass
class Measured:
    """Measurements of one side."""

    name: str
    seconds: list[float]  # of each step
    megabytes: float  # at the peak; on a GPU, of its memory

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Job:
    """Work to measure: training steps or predictions on a batch of random images."""

    model: str
    batch: int
    work: str
    threads: int
    micro_batch: int | None = None  # in training; None: the default of the model
    device: str = "cpu"
    precision: str = "fp32"  # or, on a GPU, "tf32" or "fp16"

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.precision != "fp32":
            raise ValueError(f"precision={self.precision} is for GPUs; a CPU is fastest with fp32")

    def gigaflop(self) -> float:
        """Floating-point operations of the matrix products in a step, in billions; a multiply-add counts as two."""
        config = find_model(self.model)[1]
        multiply_adds = config.cost().multiply_adds
        if self.work == "train":  # backward has two products for each of forward, but images need no gradient
            multiply_adds += 2 * multiply_adds - 3 * math.prod(config.img_size) * config.dim
        return 2 * multiply_adds * self.batch / 1e9


class Side:
    """A worker process, which answers "begin", "step" (its seconds) and "peak" (megabytes so far)."""

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
            raise ValueError(f"the measurement of {self.name} ended early, with exit code {self.process.wait()}")
        result = json.loads(answer)
        if isinstance(result, str):
            raise ValueError(result)
        return result

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()  # waits, and closes the pipes


def measure(job: Job, names: list[str], rounds: int) -> list[Measured]:
    """Measure all sides in turn, after an uncounted step of each."""
    sides = [Side(name, job) for name in names]
    try:
        for side in sides:
            side.ask("begin")
            side.ask("step")
        seconds = [[side.ask("step") for side in sides] for _ in range(rounds)]
        return [Measured(side.name, [row[i] for row in seconds], side.ask("peak")) for i, side in enumerate(sides)]
    finally:
        for side in sides:
            side.end()
