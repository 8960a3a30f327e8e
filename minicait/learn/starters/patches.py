"""Chapter 5: an image as tokens."""

from __future__ import annotations

import numpy as np

from .layers import Weights, linear
from .tensor import Tensor


def patches(images: np.ndarray, p: int) -> np.ndarray:
    """5.1  Cut images (B, C, H, W) into patches of p x p pixels: (B, N, C p p), with N = H/p * W/p.

    Patches are in reading order. Within a patch, values are ordered by channel, row, column. Two reshapes and a
    transpose do it, without a loop.

    Example: patch 5 of a 32 x 32 image, p = 8, is images[:, :, 8:16, 8:16], flattened.
    """
    raise NotImplementedError("5.1")


def patch_embed(images: np.ndarray, w: Weights) -> Tensor:
    """5.2  Tokens (B, N, d) from images (B, C, H, W): every patch times one matrix, plus a bias.

    w["proj.weight"]  (d, C, p, p): the shape of a convolution with stride p, which this is
    w["proj.bias"]    (d,)

    The shape of the weight holds the side p. Reshape the weight to (d, C p p) first; `linear` of layers.py does the
    rest.

    Example: images (2, 3, 32, 32) and a weight (24, 3, 8, 8) give (2, 16, 24).
    """
    raise NotImplementedError("5.2")
