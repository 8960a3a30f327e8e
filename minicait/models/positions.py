"""Position embeddings for another image size: bicubic interpolation over the grid of patches, as in the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .config import Config
from .model import LazyTensor


def resized_positions(
    tensors: Mapping[str, LazyTensor], config: Config, stored: Config | None, prefix: int = 0
) -> dict[str, LazyTensor]:
    """Tensors of a file in which `pos_embed` (1, prefix + N, d) fits the grid of `config`.

    The grid in the file is that of its own configuration, or, where it has none, square.
    """
    shape = tensors["pos_embed"].shape if "pos_embed" in tensors else ()
    if len(shape) != 3 or shape[0] != 1 or shape[2] != config.dim or shape[1] <= prefix:
        return dict(tensors)  # not positions: the check of shapes will say so
    patches, new = shape[1] - prefix, config.grid
    root = math.isqrt(patches)
    old = stored.grid if stored is not None else (root, root) if root * root == patches else new
    if old[0] * old[1] != patches:
        raise ValueError(f"{patches} positions are not a grid of {old[0]} x {old[1]}")
    if old == new:
        return dict(tensors)
    read, resized = tensors["pos_embed"].read, (1, prefix + config.patches, shape[2])
    return {**tensors, "pos_embed": LazyTensor(resized, lambda: resize_positions(read(), old, new, prefix))}


def resize_positions(positions: np.ndarray, old: tuple[int, int], new: tuple[int, int], prefix: int = 0) -> np.ndarray:
    """(1, prefix + rows * columns, d) for another grid; those of the tokens in front stay."""
    grid = positions[0, prefix:].reshape(*old, -1).astype(np.float64)
    grid = np.einsum("ri,ijd->rjd", bicubic(old[0], new[0]), grid)
    grid = np.einsum("cj,rjd->rcd", bicubic(old[1], new[1]), grid)
    resized = grid.reshape(1, new[0] * new[1], -1).astype(positions.dtype)
    return np.concatenate([positions[:, :prefix], resized], axis=1)


def bicubic(old: int, new: int) -> np.ndarray:
    """Matrix (new, old) of cubic convolution with a = -0.75; pixel centres at half integers, edges repeated."""
    a = -0.75
    matrix = np.zeros((new, old))
    for i in range(new):
        centre = (i + 0.5) * old / new - 0.5
        first = int(np.floor(centre)) - 1
        for j in range(first, first + 4):
            t = abs(centre - j)
            weight = (a + 2) * t**3 - (a + 3) * t**2 + 1 if t <= 1 else a * (t**3 - 5 * t**2 + 8 * t - 4)
            matrix[i, min(max(j, 0), old - 1)] += weight
    return matrix
