"""EMA: an exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from autograd import Tensor, kernels
from autograd.backend import FLOATS, Array

from ..nn import Memory, Module
from .parameters import flat_parameters
from .sweep import sweep


class EMA:
    """average = d average + (1 - d) weights, after every step; it generalises better than the last weights.

    Early on, d = (1 + t) / (10 + t), or a short run would evaluate little but the initial weights. Buffers are averaged
    alike; those that are not floating-point are copied, and a Memory stays the model's own.

    warmup  False: d is the decay from the first step on, as the target network of Grafit has it
    """

    def __init__(self, model: Module, decay: float = 0.99996, threads: int = 1, warmup: bool = True) -> None:
        self.decay, self.warmup = decay, warmup
        self.steps, self.threads = 0, threads
        self.parameters = flat_parameters(model)
        self.average = self.parameters.weights.copy()
        self.model_buffers = {name: b for name, b in model.named_buffers() if not isinstance(b, Memory)}
        self.buffers = {name: buffer.data.copy() for name, buffer in self.model_buffers.items()}

    def update(self) -> None:
        self.steps += 1
        part = 1 - (min(self.decay, (1 + self.steps) / (10 + self.steps)) if self.warmup else self.decay)
        self.parameters.attach()
        sweep(partial(_follow, part), self.average.array, self.parameters.array, threads=self.threads)
        for name, buffer in self.model_buffers.items():
            if buffer.dtype in FLOATS:
                kernels.move_average(self.buffers[name], buffer.data, part)
            else:
                self.buffers[name][...] = buffer.data

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside this block, and its own again after it."""
        tensors: list[tuple[Tensor, Array]] = [
            (p, self.average[name]) for name, p in self.parameters.parameters.items()
        ]
        tensors += [(buffer, self.buffers[name]) for name, buffer in self.model_buffers.items()]
        own = [tensor.data for tensor, _ in tensors]
        try:
            for tensor, average in tensors:
                tensor.data = average
            yield
        finally:
            for (tensor, _), data in zip(tensors, own, strict=True):
                tensor.data = data


def _follow(part: float, start: int, average: Array, weights: Array) -> None:
    kernels.move_average(average, weights, part)
