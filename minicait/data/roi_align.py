"""RoIAlign (He et al., 2017): the part of a map inside a box, as a grid of another size.

A bin is the mean of a few points in it, each interpolated bilinearly. Points form a grid and weights of a point are
products of one for its row and one for its column, so that all of it is a product with one matrix for each axis.
"""

from __future__ import annotations

import math

import numpy as np

Box = tuple[float, float, float, float]  # left, top, right, bottom
Grid = tuple[int, int]  # rows, columns


def roi_align(values: np.ndarray, box: Box, grid: Grid) -> np.ndarray:
    """A map (rows, columns, ...) inside a box, in cells of which the first has its centre at 0, as (*grid, ...).

    The same function as torchvision's with `aligned=False` and `sampling_ratio=-1`: no side of the box is shorter than
    a cell, and a point more than a cell outside of the map counts as 0.
    """
    left, top, right, bottom = box
    height, width = values.shape[:2]
    rows = _bin_weights(top, bottom, grid[0], height).astype(values.dtype)
    columns = _bin_weights(left, right, grid[1], width).astype(values.dtype)
    # einsum and not @, for BLAS may add in another order on another number of threads
    return np.einsum("cw,rw...->rc...", columns, np.einsum("rh,h...->r...", rows, values))


def _bin_weights(start: float, stop: float, bins: int, cells: int) -> np.ndarray:
    """Matrix (bins, cells): the weight of every cell in the mean over each bin."""
    side = max(stop - start, 1.0)
    points = math.ceil(side / bins)
    at = start + (np.arange(bins)[:, None] + (np.arange(points) + 0.5) / points) * (side / bins)
    counts = (at >= -1) & (at <= cells)
    at = np.clip(at, 0, cells - 1)
    below = at.astype(int)
    above = np.minimum(below + 1, cells - 1)
    weights = np.zeros((bins, cells))
    which = np.arange(bins)[:, None]
    np.add.at(weights, (which, below), counts * (1 - (at - below)) / points)
    np.add.at(weights, (which, above), counts * (at - below) / points)
    return weights
