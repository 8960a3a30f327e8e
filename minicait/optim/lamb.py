"""LAMB, written out and fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from autograd import kernels
from autograd.backend import Array
from autograd.kernels.lamb import Span

from ..nn import Module
from .norm import global_norm
from .optimiser import Optimiser
from .sweep import each


class Lamb(Optimiser):
    """Layer-wise Adaptive Moments for large Batches (You et al., 2020): AdamW with a step length for every tensor.

    A tensor moves by `lr` times the length of its weights, whatever the length of AdamW's step: the quotient of the two
    is its trust ratio. Tensors without weight decay move as by Adam. All gradients together are first clipped to
    `max_norm`, exactly, unless that is None.

    `update` is the formula, to be read. `step` does the same to all parameters at once, in few passes, and does not
    change the gradients. Tests hold the two equal.
    """

    def __init__(
        self,
        model: Module,
        lr: float,
        weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        threads: int = 1,
        max_norm: float | None = 1.0,
    ) -> None:
        super().__init__(model, lr, weight_decay, betas, eps, threads)
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be positive, or None to clip nothing, got {max_norm}")
        self.max_norm = max_norm
        self.tensors = self._tensors()

    def update(
        self, p: Array, g: Array, m: Array, v: Array, t: int, decay: float, norm: float
    ) -> tuple[Array, Array, Array]:
        """Step number t (from 1) for a tensor p with gradient g: the new p, m and v. All gradients have this norm."""
        b1, b2 = self.betas
        g = g / self.clipping(norm)
        m = b1 * m + (1 - b1) * g  # mean of the gradients
        v = b2 * v + (1 - b2) * g**2  # mean of their squares
        m_hat = m / (1 - b1**t)  # both start at 0: correct that bias
        v_hat = v / (1 - b2**t)
        u = m_hat / (np.sqrt(v_hat) + self.eps) + decay * p  # AdamW's step
        p = p - self.lr * trust_ratio(p, u, decay) * u
        return p, m, v

    def clipping(self, norm: float) -> float:
        """The number by which gradients of this norm are divided."""
        return 1.0 if self.max_norm is None else max(1.0, norm / self.max_norm)

    def _scale(self, gradients: Mapping[str, Array], norm: float | None) -> float:
        if self.max_norm is None:
            return 1.0
        return 1 / self.clipping(global_norm(gradients) if norm is None else norm)

    def _tensors(self) -> list[Span]:
        """Start and end of every tensor with a ratio of its own, and of all others together; True if it decays."""
        layout = self.parameters.layout
        decayed = [part for part in layout.slices.values() if part.start < layout.decayed]
        largest_first = sorted(decayed, key=lambda part: part.start - part.stop)  # so threads get about as much each
        return [*((part.start, part.stop, True) for part in largest_first), (layout.decayed, layout.size, False)]

    def _move(self, part: slice, g: Array, scale: float) -> None:
        """The ratio is known only after a pass over all of a tensor, so a worker takes whole tensors."""
        layout, size = self.parameters.layout, part.stop - part.start
        tensors = self.tensors if size == layout.size else [(0, size, part.start < layout.decayed)]
        p, m, v = (array[part] for array in (self.parameters.array, self.mean.array, self.square.array))
        settings = {"step": self.steps, "lr": self.lr, "betas": self.betas, "eps": self.eps}
        work = partial(_fused, p, g, m, v, {**settings, "decay": self.weight_decay, "scale": scale})
        on_cpu = isinstance(p, np.ndarray)
        each(work, [[tensor] for tensor in tensors] if on_cpu else [tensors], (p, g, m, v), self.threads, blas=on_cpu)


def _fused(p: Array, g: Array, m: Array, v: Array, settings: dict[str, Any], tensors: Sequence[Span]) -> None:
    kernels.lamb(p, g, m, v, tensors, **settings)


def trust_ratio(p: Array, u: Array, decay: float) -> float:
    """|p| / |u|, for a step u of weights p. It is 1 without weight decay, and where one of the two is zero."""
    weight_norm, step_norm = np.linalg.norm(p), np.linalg.norm(u)
    return float(weight_norm / step_norm) if decay and weight_norm > 0 and step_norm > 0 else 1.0
