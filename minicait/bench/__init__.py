"""Measuring: how fast a model trains or predicts on this machine, in how much memory, and beside PyTorch.

Each side runs in a process of its own (`worker`), because the peak memory of a process is all that can be measured of
it. The sides take turns, step by step: on a machine that others use too, only what ran in the same minute compares.
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
GRADIENTS = 2  # for each product of forward, backward has two


@dataclass
class Measured:
    """Of one side: seconds of each step, and megabytes at its peak, on a GPU of the GPU's memory."""

    name: str
    seconds: list[float]
    megabytes: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Job:
    """What is measured: steps of training, or predictions, on a batch of random images."""

    model: str
    batch: int
    work: str
    threads: int
    micro_batch: int | None = None  # of training; None is what suits the model
    device: str = "cpu"
    precision: str = "fp32"  # or, on a GPU, "tf32" or "fp16"

    def __post_init__(self) -> None:
        if self.device == "cpu" and self.precision != "fp32":
            raise ValueError(f"precision={self.precision} is for GPUs; a CPU is fastest with fp32")

    def gigaflop(self) -> float:
        """Of the products of matrices in one step; a multiply-add counts as two."""
        config = find_model(self.model)[1]
        multiply_adds = config.cost().multiply_adds
        if self.work == "train":
            first_layer = 3 * math.prod(config.img_size) * config.dim  # whose images need no gradient
            multiply_adds += GRADIENTS * multiply_adds - first_layer
        return 2 * multiply_adds * self.batch / 1e9


class Side:
    """A worker process: `step()` lets it do one step."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        command = [sys.executable, "-m", "minicait.bench.worker", name, json.dumps(vars(job))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _ask(self, what: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{what}\n")
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

    def begin(self) -> None:
        """Import and build everything."""
        self._ask("begin")

    def step(self) -> float:
        return self._ask("step")

    def peak(self) -> float:
        """Megabytes, so far."""
        return self._ask("peak")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def measure(job: Job, names: list[str], rounds: int) -> list[Measured]:
    """Every side of `names` in turn, after one step each that is not counted."""
    sides = [Side(name, job) for name in names]
    try:
        for side in sides:
            side.begin()
            side.step()
        seconds = [[side.step() for side in sides] for _ in range(rounds)]
        return [Measured(side.name, [row[i] for row in seconds], side.peak()) for i, side in enumerate(sides)]
    finally:
        for side in sides:
            side.end()
