"""Indexing, splitting, and the largest values. A value selected several times accumulates all its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from .. import backend
from ..backend import Array, array_module
from ..function import Context, Function, OperandError
from ..tensor import Tensor, as_tensor
from .arguments import as_tensor_like, normalise_axis


class Getitem(Function):
    """y = x[index];  dx = zeros, with g added at index"""

    @staticmethod
    def forward(ctx: Context, x: Array, index: Any) -> Array:
        ctx.save(x.shape, index)
        return x[index]

    @staticmethod
    def backward(ctx: Context, g: Array) -> Array:
        shape, index = ctx.saved
        return _add_at(shape, index, g)


class TakeAlongAxis(Function):
    """y[.., i, ..] = x[.., indices[.., i, ..], ..];  dx = zeros, with g added at the indices"""

    @staticmethod
    def forward(ctx: Context, x: Array, indices: Array, axis: int) -> Array:
        if indices.dtype.kind not in "iu":
            raise OperandError(f"indices must be integers, got {indices.dtype}")
        if indices.ndim != x.ndim:
            raise OperandError(f"indices must have {x.ndim} axes like x {x.shape}, got {indices.shape}")
        axis = normalise_axis(axis, x.ndim)
        size = x.shape[axis]
        # on the host only: CuPy wraps around silently, but checking there would synchronise with the GPU
        if isinstance(indices, np.ndarray) and indices.size and not -size <= indices.min() <= indices.max() < size:
            raise IndexError(f"indices must be in [{-size}, {size - 1}], got {indices.min()} to {indices.max()}")
        ctx.save(x.shape, indices, axis)
        return array_module(x).take_along_axis(x, indices, axis)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        shape, indices, axis = ctx.saved
        xp = array_module(g)
        grid = []  # the same selection as plain integer indices
        for i, size in enumerate(shape):
            along = [1] * len(shape)
            along[i] = -1
            # an axis of size 1 in `indices` was broadcast over that of x, so its gradient covers all of it
            grid.append(indices if i == axis else xp.arange(size).reshape(along))
        return _add_at(shape, tuple(grid), g), None


def _add_at(shape: tuple[int, ...], index: Any, g: Array) -> Array:
    xp = array_module(g)
    parts = index if isinstance(index, tuple) else (index,)
    if any(backend.is_array(part) and part.dtype != bool for part in parts):
        total = xp.zeros(shape, np.promote_types(g.dtype, np.float32))
        xp.add.at(total, index, g)  # assignment would keep only the last of repeated indices
        return total.astype(g.dtype, copy=False)
    total = xp.zeros(shape, g.dtype)
    total[index] = g
    return total


def getitem(x: Any, index: Any) -> Tensor:
    """x[index], where index may hold integers, slices, ..., None, and integer or boolean arrays, lists or Tensors."""
    x = as_tensor(x)
    parts = index if isinstance(index, tuple) else (index,)
    plain = tuple(_plain_index(part, x) for part in parts)
    return Getitem.apply(x, plain if isinstance(index, tuple) else plain[0])


def _plain_index(part: Any, x: Tensor) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice | Integral):
        return part
    if isinstance(part, Tensor):
        part = part.data
    if not backend.is_array(part):
        part = np.asarray(part)
        if part.size == 0:
            part = part.astype(np.intp)
    if part.dtype.kind not in "biu":
        raise IndexError(f"getitem: index arrays must be integers or booleans, got {part.dtype}")
    return backend.to_device(part, x.device)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """Select one value per index along an axis: `take_along_axis(log_probs, labels[:, None], -1)`."""
    x = as_tensor(x)
    return TakeAlongAxis.apply(x, as_tensor_like("take_along_axis", indices, x), axis)


def topk(x: Any, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest values along an axis, the largest first, and their indices. NaN counts as the largest.

    It takes k passes over x, so k should be small.
    """
    x = as_tensor(x)
    if not -x.ndim <= axis < x.ndim:
        raise OperandError(f"topk: axis {axis} is out of range for shape {x.shape}")
    if not 1 <= k <= x.shape[axis]:
        raise OperandError(f"topk: k must be in [1, {x.shape[axis]}] for axis {axis} of shape {x.shape}, got {k}")
    indices = Tensor(_largest(x.data, k, axis % x.ndim))
    return TakeAlongAxis.apply(x, indices, axis), indices


def _largest(x: Array, k: int, axis: int) -> Array:
    """Indices of the k largest values, the lower one first at ties."""
    xp = array_module(x)
    positions = xp.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    taken, indices = xp.zeros(x.shape, bool), []
    for _ in range(k):
        largest = xp.where(taken, -np.inf, x).max(axis=axis, keepdims=True)
        index = (((x == largest) | (x != x)) & ~taken).argmax(axis=axis, keepdims=True)
        taken |= positions == index
        indices.append(index)
    return xp.concatenate(indices, axis=axis)


def split(x: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split along an axis into a number of equal parts, or at the given indices."""
    x = as_tensor(x)
    if not -x.ndim <= axis < x.ndim:
        raise OperandError(f"split: axis {axis} is out of range for shape {x.shape}")
    size = x.shape[axis]
    if isinstance(indices_or_sections, Integral):
        count = int(indices_or_sections)
        if count < 1 or size % count:
            raise OperandError(f"split: axis {axis} of shape {x.shape} does not divide into {count} equal parts")
        cuts = [size // count * i for i in range(1, count)]
    else:
        cuts = [int(cut) for cut in indices_or_sections]  # type: ignore[union-attr]
    before = (slice(None),) * (axis % x.ndim)
    return [
        Getitem.apply(x, (*before, slice(start, stop))) for start, stop in zip([0, *cuts], [*cuts, size], strict=True)
    ]
