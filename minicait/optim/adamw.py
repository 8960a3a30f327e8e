"""AdamW, written out and fused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from autograd import kernels
from autograd.backend import Array

from .optimiser import Optimiser
from .sweep import sweep


class AdamW(Optimiser):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019).

    `update` is the formula, to be read. `step` does the same to all parameters at once: they are one flat array, and a
    fused kernel goes over it in few passes. Tests hold the two equal.
    """

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

    def _move(self, part: slice, g: Array, scale: float) -> None:
        """AdamW does not clip: `scale` is 1."""
        p, m, v = (array[part] for array in (self.parameters.array, self.mean.array, self.square.array))
        decay, decayed = self.lr * self.weight_decay, self.parameters.layout.decayed - part.start
        settings = {"step": self.steps, "lr": self.lr, "betas": self.betas, "eps": self.eps, "decay": decay}
        sweep(partial(_fused, settings, decayed), p, g, m, v, threads=self.threads)


def _fused(settings: dict[str, Any], decayed: int, start: int, p: Array, g: Array, m: Array, v: Array) -> None:
    kernels.adamw(p, g, m, v, decayed=decayed - start, **settings)
