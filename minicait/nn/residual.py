"""residual: the sum of a main path and a branch, x + drop_path(diag(scale) branch(norm(x))).

A block says which branch, norm and scale (eq. 4). How the sum is computed lives here: the branch's last linear layer,
the scale and the sum are one fused operation, samples whose branch stochastic depth drops are not computed at all, and
`record` sees both sides where no sample is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate

import numpy as np

from autograd import Tensor, ops
from autograd.backend import Array, to_device

from .layers import Branch, DropPath
from .module import Module
from .record import observe_residual

Rows = Array | None  # samples that keep their branch, by index; None for all of them
_drawn: ContextVar[dict[int, Rows] | None] = ContextVar("minicait_stochastic_depth", default=None)


def residual(
    x: Tensor,
    branch: Module,
    norm: Module | None = None,
    scale: Tensor | float | None = None,
    drop_path: DropPath | None = None,
    reads: Tensor | None = None,
) -> Tensor:
    """x + drop_path(diag(scale) branch(norm(x))): eq. 4; without `scale` eq. 2, with a single number eq. 3.

    scale  LayerScale, one learned number, or a constant
    reads  what the branch sees instead of x: class attention updates the class token but reads all tokens
    """
    z = x if reads is None else reads
    if not isinstance(branch, Branch) or branch.last.bias is None or _needs_dropped(branch, norm, drop_path):
        y = branch(z if norm is None else norm(z))
        observe_residual(branch, x, lambda: y, scale)
        if isinstance(scale, Tensor) and scale.shape == x.shape[-1:] and y.shape == x.shape and not _drops(drop_path):
            return ops.affine(y, scale, x)
        y = y if scale is None else scale * y
        return x + (y if drop_path is None else drop_path(y))
    rows = None if drop_path is None else _kept(drop_path, x)
    if rows is not None:
        if not len(rows):
            return x
        z = z[rows]
    inner = branch.inner(z if norm is None else norm(z))
    if rows is None:
        observe_residual(branch, x, lambda: branch.last(inner), scale)
    factor = 1.0 if drop_path is None else drop_path.factor
    if isinstance(scale, float):
        factor, scale = factor * scale, None
    return ops.linear_residual(x, inner, branch.last.matrix, branch.last.bias, _per_channel(scale, x), factor, rows)


def _needs_dropped(branch: Module, norm: Module | None, drop_path: DropPath | None) -> bool:
    """True if a branch must be computed for samples that drop it, because they are part of its batch statistics."""
    parts = [part for part in (branch, norm) if part is not None]
    return _drops(drop_path) and any(m.couples_samples for part in parts for _, m in part.named_modules())


def _drops(drop_path: DropPath | None) -> bool:
    return drop_path is not None and drop_path.training and drop_path.rate > 0


def _per_channel(scale: Tensor | None, x: Tensor) -> Tensor | None:
    """One factor per channel: LayerScale as it is, one number repeated."""
    return scale if scale is None or scale.shape == x.shape[-1:] else ops.broadcast_to(scale, x.shape[-1:])


def _kept(drop_path: DropPath, x: Tensor) -> Rows:
    drawn = _drawn.get()
    if drawn is not None and id(drop_path) in drawn:
        return drawn[id(drop_path)]
    return drop_path.kept(x.shape[0])


@contextmanager
def drop_paths_drawn(model: Module, x: Tensor) -> Iterator[None]:
    """Draw for all branches of `model` at once which samples keep them, so that a GPU gets them in one copy."""
    if x.device == "cpu":
        yield
        return
    layers = [module for _, module in model.named_modules() if isinstance(module, DropPath)]
    drawn: dict[int, Rows] = {id(layer): layer.kept(x.shape[0]) for layer in layers}
    some = {key: rows for key, rows in drawn.items() if rows is not None}
    if some:
        whole = to_device(np.concatenate(list(some.values())), x.device)
        ends = accumulate(map(len, some.values()))
        drawn |= {key: whole[end - len(rows) : end] for (key, rows), end in zip(some.items(), ends, strict=True)}
    token = _drawn.set(drawn)
    try:
        yield
    finally:
        _drawn.reset(token)
