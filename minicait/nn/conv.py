"""Convolution and batch normalisation. Images are channels-last inside a model: (B, H, W, C)."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import Tensor, ops, random
from autograd.backend import Array
from autograd.random import Stream

from .layers import uniform
from .module import Buffer, Module, Parameter


class Conv2d(Module):
    """Convolution (B, H, W, inputs) -> (B, H', W', outputs), with a weight (outputs, inputs / groups, k, k).

    Weight and bias start uniform in ±1 / sqrt(n), n the number of values that each output sees.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1,
        bias: bool = True, stream: Stream | None = None,
    ) -> None:  # fmt: skip
        stream = stream or random.unnamed()
        shape = outputs, inputs // groups, kernel, kernel
        bound = (shape[1] * kernel * kernel) ** -0.5
        self.weight = Parameter(uniform(shape, bound, stream.named("weight")))
        self.bias = Parameter(uniform((outputs,), bound, stream.named("bias"))) if bias else None
        self.stride, self.padding, self.groups = stride, padding, groups

    def forward(self, x: Any) -> Tensor:
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.groups, channels_last=True)

    def describe(self) -> str:
        outputs, inputs, k, _ = self.weight.shape
        options = {"stride": (self.stride, 1), "padding": (self.padding, 0), "groups": (self.groups, 1)}
        others = [f", {name} {value}" for name, (value, default) in options.items() if value != default]
        bias = "" if self.bias is not None else ", no bias"
        return f"{inputs * self.groups} -> {outputs}, {k} x {k}{''.join(others)}{bias}"


class BatchNorm(Module):
    """Every channel, the last axis, to mean 0 and variance 1 over the batch, then scaled and shifted.

    In evaluation, running averages of the batches' means and variances take their place. Each batch moves them by the
    part `momentum`; the variances are unbiased estimates, divided by n - 1.
    """

    couples_samples = True

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.weight = Parameter(np.ones(dim, np.float32))
        self.bias = Parameter(np.zeros(dim, np.float32))
        self.running_mean = Buffer(np.zeros(dim, np.float32))
        self.running_var = Buffer(np.ones(dim, np.float32))
        self.num_batches_tracked = Buffer(np.zeros((), np.int64))
        self.eps = eps
        self.momentum = momentum

    def forward(self, x: Any) -> Tensor:
        if self.training:
            return ops.batch_norm(x, self.weight, self.bias, eps=self.eps, axis=-1, observe=self._observe)
        statistics = self.running_mean, self.running_var
        return ops.batch_norm(x, self.weight, self.bias, *statistics, self.eps, axis=-1)

    def _observe(self, mean: Array, var: Array, count: int) -> None:
        unbiased = var * (count / (count - 1))
        for running, batch in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.data *= 1 - self.momentum
            running.data += self.momentum * batch
        self.num_batches_tracked.data[...] += 1

    def describe(self) -> str:
        return str(self.weight.size)
