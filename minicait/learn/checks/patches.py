"""Checks of chapter 5."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import Tensor, ops

from ..compare import same, unchanged
from ..composed import check_composed, like
from ..learner import Learner

SIZES = [((2, 3, 8, 8), 4), ((1, 3, 6, 9), 3), ((3, 1, 4, 4), 1), ((2, 2, 5, 5), 5)]  # of images, and p


def by_slices(images: np.ndarray, p: int) -> np.ndarray:
    """Patch by patch."""
    batch, _, height, width = images.shape
    places = [(row, column) for row in range(0, height, p) for column in range(0, width, p)]
    return np.stack([images[:, :, r : r + p, c : c + p].reshape(batch, -1) for r, c in places], axis=1)


def _images(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def cut(me: Learner) -> None:
    theirs = me.get("patches.patches")
    me.case = "images = np.arange(32.0).reshape(1, 2, 4, 4), p = 2"
    counted = np.arange(32.0).reshape(1, 2, 4, 4)
    same("the result", theirs(counted.copy(), 2), by_slices(counted, 2))
    for shape, p in SIZES:
        me.case = f"images {shape}, p = {p}"
        images = _images(shape)
        given = images.copy()
        same("the result", theirs(given, p), by_slices(images, p))
        unchanged("patches", ["images"], [given], [images])


def embedding(me: Learner) -> None:
    theirs = me.get("patches.patch_embed")
    for shape, p in SIZES:
        me.case = f"images {shape}, p = {p}"
        images, rng = _images(shape), np.random.default_rng(1)
        weights = {
            "proj.weight": rng.standard_normal((5, shape[1], p, p)),
            "proj.bias": rng.standard_normal(5),
        }
        tokens = by_slices(images, p)

        def ours(w: dict[str, Tensor], tokens: np.ndarray = tokens) -> Tensor:
            return ops.linear(tokens, w["proj.weight"].reshape(5, -1), w["proj.bias"])

        def called(w: dict[str, Any], images: np.ndarray = images) -> Any:
            return theirs(like(images, w), w)

        check_composed(me, called, ours, weights)
