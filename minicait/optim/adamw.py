"""AdamW, written out and fused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autograd import kernels
from autograd.backend import Array

from ..nn import Module
from .parameters import FlatArrays, flat_parameters
from .sweep import sweep


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019).

    `update` is the formula, to be read. `step` does the same to all parameters at once: they are one flat array, and a
    fused kernel goes over it in few passes. Tests hold the two equal.
    """

    def __init__(
        self,
        model: Module,
        lr: float,
        weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        threads: int = 1,
    ) -> None:
        self.parameters = flat_parameters(model)
        self.lr, self.weight_decay, self.betas, self.eps = lr, weight_decay, betas, eps
        self.steps, self.threads = 0, threads
        self.mean, self.square = self.parameters.zeros(), self.parameters.zeros()

    def update(self, p: Array, g: Array, m: Array, v: Array, t: int, decay: float) -> tuple[Array, Array, Array]:
        """Step number t (from 1) for an array p with gradient g: the new p, m and v."""
        b1, b2 = self.betas
        m = b1 * m + (1 - b1) * g  # mean of the gradients
        v = b2 * v + (1 - b2) * g**2  # mean of their squares
        m_hat = m / (1 - b1**t)  # both start at 0: correct that bias
        v_hat = v / (1 - b2**t)
        p = p - self.lr * decay * p  # weight decay, apart from the gradient
        p = p - self.lr * m_hat / (np.sqrt(v_hat) + self.eps)
        return p, m, v

    def step(self, gradients: Mapping[str, Array] | None = None, lr: float | None = None) -> None:
        """Move the parameters along the given gradients, by default along their `.grad`. Others stay."""
        if gradients is None:
            learned = self.parameters.parameters.items()
            gradients = {name: p.grad.data for name, p in learned if p.grad is not None}
        self.lr = self.lr if lr is None else lr
        self.steps += 1
        self.parameters.attach()
        layout = self.parameters.layout
        if isinstance(gradients, FlatArrays) and gradients.layout == layout:
            self._sweep(slice(0, layout.size), gradients.array)
        else:
            for name, g in gradients.items():
                self._sweep(layout.slices[name], g.reshape(-1))

    def _sweep(self, part: slice, g: Array) -> None:
        """The fused update of a part of the flat array."""
        first_undecayed = self.parameters.layout.decayed - part.start

        def fused(start: int, arrays: tuple[Array, ...]) -> None:
            p, g, m, v = arrays
            decayed, decay = first_undecayed - start, self.lr * self.weight_decay
            kernels.adamw(p, g, m, v, self.steps, self.lr, self.betas, self.eps, decay, decayed)

        flat = (self.parameters.array, self.mean.array, self.square.array)
        p, m, v = (array[part] for array in flat)
        sweep(fused, p, g, m, v, threads=self.threads)

    def zero_grad(self) -> None:
        for p in self.parameters.parameters.values():
            p.grad = None
