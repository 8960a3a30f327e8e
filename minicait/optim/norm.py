"""The norm of all gradients together, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from autograd import kernels
from autograd.backend import Array, array_module, to_device

from .parameters import FlatArrays
from .sweep import results, sweep


def global_norm(gradients: Mapping[str, Array]) -> float:
    """Euclidean norm of all gradients as one vector. On a GPU this synchronises.

    It is finite exactly if all gradients are: where squares overflow float32, they are added up in float64.
    """
    return math.sqrt(sum(map(_square, _arrays(gradients))))


def norm_and_loss(gradients: FlatArrays, loss: Array) -> tuple[float, float]:
    """Norm of the gradients, NaN if the loss is not finite, and the loss as a number; on a GPU both in one copy.

    A loss can be infinite where its gradients are finite; then these become NaN, which spoils the update they are in.
    """
    if isinstance(loss, np.ndarray | np.generic):
        norm, value = global_norm(gradients), float(loss)
    else:
        squares = kernels.squares(gradients.array)
        both = array_module(squares).append(squares, loss.astype(squares.dtype))
        *parts, value = to_device(both, "cpu").tolist()
        norm = math.sqrt(sum(parts))
    if not math.isfinite(value):
        gradients.array[...] = norm = math.nan
    return norm, value


def clip_gradients(gradients: Mapping[str, Array], max_norm: float, norm: float | None = None) -> float:
    """Scale all gradients, in place, so that their norm is at most `max_norm`. Return the norm from before."""
    norm = global_norm(gradients) if norm is None else norm
    if norm > max_norm:
        factor = max_norm / (norm + 1e-6)
        if isinstance(gradients, FlatArrays):
            sweep(partial(_multiply, factor), gradients.array)
        else:
            for g in gradients.values():
                g *= factor
    return norm


def _arrays(gradients: Mapping[str, Array]) -> list[Array]:
    return [gradients.array] if isinstance(gradients, FlatArrays) else list(gradients.values())


def _square(g: Array) -> float:
    if not isinstance(g, np.ndarray):
        return float(to_device(kernels.squares(g), "cpu").sum())
    return float(np.sum(results(_square_of_chunk, g.reshape(-1))))


def _square_of_chunk(start: int, g: Array) -> float:
    total = float(np.vdot(g, g))
    return total if math.isfinite(total) else float(kernels.squares(g).sum())


def _multiply(factor: float, start: int, g: Array) -> None:
    g *= factor
