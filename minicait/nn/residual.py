"""residual: the sum of a main path and a branch, x + drop_path(diag(scale) branch(norm(x))).

A block says which branch, norm and scale (eq. 4). How the sum is computed lives here: the branch's last linear layer,
the scale and the sum are one fused operation, samples whose branch stochastic depth drops are not computed at all, and
`record` sees both sides where no sample is dropped.
"""

from __future__ import annotations

from autograd import Tensor, ops

from .drop import DropPath
from .layers import Branch
from .module import Module
from .record import observe_residual


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
    factors = None if drop_path is None else drop_path.given_factors
    rows = None if drop_path is None or factors is not None else drop_path.rows(x.shape[0])
    if rows is not None:
        if not len(rows):
            return x
        z = z[rows]
    inner = branch.inner(z if norm is None else norm(z))
    if rows is None:
        observe_residual(branch, x, lambda: branch.last(inner), scale)
    factor = 1.0 if drop_path is None else drop_path.factor if factors is None else factors
    if isinstance(scale, float):
        factor, scale = factor * scale, None
    return ops.linear_residual(x, inner, branch.last.matrix, branch.last.bias, _per_channel(scale, x), factor, rows)


def _needs_dropped(branch: Module, norm: Module | None, drop_path: DropPath | None) -> bool:
    """True if a branch must be computed for samples that drop it, because they are part of its batch statistics."""
    parts = [part for part in (branch, norm) if part is not None]
    return _drops(drop_path) and any(m.couples_samples for part in parts for _, m in part.named_modules())


def _drops(drop_path: DropPath | None) -> bool:
    return drop_path is not None and drop_path.active


def _per_channel(scale: Tensor | None, x: Tensor) -> Tensor | None:
    """One factor per channel: LayerScale as it is, one number repeated."""
    return scale if scale is None or scale.shape == x.shape[-1:] else ops.broadcast_to(scale, x.shape[-1:])
