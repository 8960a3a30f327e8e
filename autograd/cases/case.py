"""A test case: one operation on float inputs drawn from a seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import engine
from ..tensor import Tensor
from .samples import Maker


@dataclass(frozen=True)
class Case:
    op: str  # name in autograd.ops
    variant: str
    fn: Callable[..., Tensor]
    inputs: tuple[Maker, ...]
    long_sums: bool = False  # of many values of either sign, whose rounding errors depend on the order

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [make(rng) for make in self.inputs]

    def __str__(self) -> str:
        return f"{self.op}-{self.variant}"

    def slack(self, dtype: Any) -> float:
        """Factor for the tolerance between devices, which add in different orders."""
        return 1 if not self.long_sums else 2 if dtype == np.float16 else 32  # float16 is rounded once, at the end

    def run(self, device: str, dtype: Any, rounded_to: Any = None) -> list[np.ndarray]:
        """Value and gradients on `device` in `dtype`, from inputs first rounded to `rounded_to`."""
        rounded_to = dtype if rounded_to is None else rounded_to
        tensors = [Tensor(x.astype(rounded_to).astype(dtype)).to(device) for x in self.arrays()]
        for x in tensors:
            x.requires_grad = True
        output = self.fn(*tensors)
        cotangent = np.random.default_rng(0).standard_normal(output.shape).astype(rounded_to)
        gradients = engine.grad(output, tensors, cotangent)
        results = [output, *(g for g in gradients if g is not None)]
        assert len(results) == 1 + len(tensors) and {x.device for x in results} == {tensors[0].device}
        return [x.numpy() for x in results]


def roundings_apart(got: Sequence[np.ndarray], want: Sequence[np.ndarray], dtype: Any) -> float:
    """Largest difference between two lists of arrays, in machine epsilons of `dtype`.

    Differences are relative to the largest value of each wanted array, or to 1 if that is larger. Infinite if shapes
    differ, or if a value is NaN or infinite in only one of the two.
    """
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return np.inf
        a, b = a.astype(np.float64), b.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.abs(a[~same] - b[~same]).max(initial=0) / np.abs(b[np.isfinite(b)]).max(initial=1)
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf)) / float(np.finfo(dtype).eps))
    return worst
