"""Optimisation: AdamW, its learning-rate schedule, gradient clipping, and an average of the weights (EMA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from autograd import Tensor, kernels
from autograd.backend import Array, array_module, to_device

from ..machine import blas_threads, on_threads
from ..nn import Module
from .parameters import Flat, flatten, is_decayed, zeros_like

CHUNK = 1 << 17  # values of an array that are worked on at a time, and stay in the cache meanwhile


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019). For each value p with gradient g, at step t:

    m = b1 m + (1 - b1) g                     the mean gradient
    v = b2 v + (1 - b2) g^2                   the mean squared gradient
    p = p - lr wd p                           decay, apart from the gradient
    p = p - lr m' / (sqrt(v') + eps)          with m' = m / (1 - b1^t) and v' = v / (1 - b2^t)
    """

    def __init__(
        self,
        model: Module,
        lr: float,
        weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.lr, self.weight_decay, self.betas, self.eps = lr, weight_decay, betas, eps
        self.steps = 0
        flatten(model)
        weights = {name: p.data for name, p in self.parameters.items()}
        self.mean, self.square = zeros_like(weights), zeros_like(weights)

    def step(
        self,
        gradients: Mapping[str, Array] | None = None,
        threads: int = 1,
        pace: Array | None = None,
        ema: EMA | None = None,
    ) -> None:
        """Move the parameters along the given gradients, by default along their `.grad`. Those without stay.

        A `Gate` sets the pace of a step, and counts it; and the average of the weights can move in the same sweep.
        """
        given = gradients
        if given is None:
            given = {name: p.grad.data for name, p in self.parameters.items() if p.grad is not None}
        if pace is None:
            self.steps += 1
            pace = on_device(kernels.pace_of(self.steps, self.betas), self.parameters)
        weights = flatten(self.model, parameters=self.parameters)
        kept = [self.mean, self.square] if ema is None else [self.mean, self.square, ema.average]
        wholes = None if weights is None else weights.wholes(given, *kept)
        if weights is not None and wholes is not None:
            self._move([(*wholes, weights.decayed)], pace, threads)
            return
        parts = []
        for name, p in self.parameters.items():
            if (g := given.get(name)) is not None:
                parts.append((p.data, g, self.mean[name], self.square[name], is_decayed(name, p.shape) * p.size))
        self._move(parts, pace, threads)
        if ema is not None:
            ema.update(threads, pace)

    def _move(self, parts: list[tuple[Any, ...]], pace: Array, threads: int) -> None:
        """Parts are weights, gradients, both means, perhaps the average, and how many of their first are decayed."""
        decay = self.lr * self.weight_decay

        def move(part: tuple[Any, ...]) -> None:
            (p, g, m, v, *average), decayed = part
            kernels.adamw(
                p, g, m, v, pace, self.lr, self.betas, self.eps, decay, decayed, average[0] if average else None
            )

        chunks = [(chunk, count - start) for *arrays, count in parts for start, chunk in _chunks(*arrays)]
        on_threads(move, chunks, threads)

    def zero_grad(self) -> None:
        for p in self.parameters.values():
            p.grad = None


def learning_rate(
    step: int, total: int, warmup: int, peak: float, warmup_from: float = 1e-6, final: float = 1e-5
) -> float:
    """Of a step (from 0): a straight line up to the peak over `warmup` steps, then half a cosine down to `final`.

    As in the reference, the cosine counts from the first step, not from the end of the warm-up.
    """
    if step < warmup:
        return warmup_from + (peak - warmup_from) * step / warmup
    return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * min(1, step / max(1, total))))


def on_device(numbers: list[float], parameters: Mapping[str, Tensor]) -> Array:
    """A few numbers where the weights are, in float32, or in float64 as the weights."""
    first = next(iter(parameters.values()))
    return to_device(np.array(numbers, np.result_type(first.dtype, np.float32)), first.device)


def _chunks(*arrays: Array) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Views of the same part of all arrays, and where it starts, one after the other. On a GPU they stay whole."""
    if not all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in arrays):
        yield 0, arrays
        return
    flat = [array.reshape(-1) for array in arrays]
    for i in range(0, flat[0].size, CHUNK):
        yield i, tuple(array[i : i + CHUNK] for array in flat)


def squares(gradients: Mapping[str, Array]) -> Array:
    """Parts, on the device of the gradients, whose sum is the square of their length: not finite only if they are."""
    arrays = _arrays(gradients)
    if all(isinstance(array, np.ndarray) for array in arrays):
        chunks = [g for array in arrays for _, (g,) in _chunks(array)]
        with blas_threads(1):  # or its last digits, and so a clipped step, would depend on the number of CPUs
            parts = np.array([np.vdot(g, g) for g in chunks], np.float64)
        if np.isfinite(parts).all():
            return parts
        return np.concatenate([kernels.squares(g) for g in chunks])  # they were too large for float32
    there = [kernels.squares(array) for array in arrays]
    return there[0] if len(there) == 1 else array_module(there[0]).concatenate(there)


def global_norm(gradients: Mapping[str, Array]) -> float:
    """The length of all gradients taken as one vector."""
    return math.sqrt(float(squares(gradients).sum()))


def clip_gradients(gradients: Mapping[str, Array], max_norm: float) -> float:
    """Shorten all gradients, in place, so that together they are not longer than `max_norm`. Returns their length."""
    norm = global_norm(gradients)
    if norm > max_norm:
        for g in _arrays(gradients):
            g *= max_norm / (norm + 1e-6)
    return norm


def _arrays(gradients: Mapping[str, Array]) -> list[Array]:
    """One, if they are parts of one."""
    return [gradients.whole] if isinstance(gradients, Flat) else list(gradients.values())


class EMA:
    """An average of the weights over the steps, w = d w + (1 - d) p, which generalises better than the last ones.

    Early on, d = (1 + t) / (10 + t), or a short run would evaluate little but the initial weights.
    """

    def __init__(self, model: Module, decay: float = 0.99996) -> None:
        self.model, self.decay = model, decay
        self.steps = 0
        self.parameters = dict(model.named_parameters())
        self.average = zeros_like({name: p.data for name, p in self.parameters.items()})
        for name, p in self.parameters.items():
            self.average[name][...] = p.data

    def update(self, threads: int = 1, pace: Array | None = None) -> None:
        """Follow the weights, at the pace that a `Gate` has set, if there is one, which then counts the steps, too."""
        if pace is None:
            self.steps += 1
            pace = on_device(kernels.pace_of(self.steps, (0.0, 0.0), self.decay), self.parameters)
        weights = flatten(self.model, parameters=self.parameters)
        wholes = None if weights is None else weights.wholes(self.average)
        pairs: list[Any] = [(self.average[name], p.data) for name, p in self.parameters.items()]
        if wholes is not None:
            pairs = [wholes[::-1]]
        chunks = [chunk for pair in pairs for _, chunk in _chunks(*pair)]
        on_threads(lambda pair: kernels.move_average(pair[0], pair[1], pace), chunks, threads)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights inside this block, and its own again after it."""
        own = {name: p.data for name, p in self.parameters.items()}
        try:
            for name, p in self.parameters.items():
                p.data = self.average[name]
            yield
        finally:
            for name, p in self.parameters.items():
                p.data = own[name]
