"""MixToken: a box of tokens exchanged between two images of a batch (LV-ViT, eqs. 8 to 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import Tensor, ops, random

from .module import Module

Grid = tuple[int, int]
Box = tuple[int, int, int, int]  # first row, first column, and those behind the last


class MixToken(Module):
    """In training, if enabled, exchange a box of tokens with the image at the other end of the batch.

    There is one box for the whole batch. It is drawn from the current random stream, so that `labels`, called under the
    same stream, mixes the labels alike.
    """

    couples_samples = True

    def __init__(self) -> None:
        self.enabled = False

    @property
    def active(self) -> bool:
        return self.enabled and self.training

    def box(self, grid: Grid) -> Box:
        stream = random.current() or self.next_stream()
        rng = stream.named("mix_token").at(sample=0).generator()
        return mix_box(grid, rng.random(), (int(rng.integers(grid[0])), int(rng.integers(grid[1]))))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, rows, columns, dim), inside the box that of the reversed batch."""
        if not self.active:
            return x
        _, rows, columns, _ = x.shape
        inside = in_box((rows, columns), self.box((rows, columns)))
        return ops.where(inside[..., None], ops.flip(x, 0), x)

    def labels(self, labels: Any, grid: Grid, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the images (B, K), mixed by area, and of every token, by the image it comes from.

        Those of tokens are (B, N) if the labels are class indices, (B, N, K) if they are soft.
        """
        labels, inside = np.asarray(labels), in_box(grid, self.box(grid)).reshape(-1)
        place = inside.reshape(1, -1, *(1,) * (labels.ndim - 1))
        of_tokens = np.where(place, labels[::-1, None], labels[:, None])
        soft = np.eye(classes, dtype=np.float32)[labels] if labels.ndim == 1 else labels
        share = inside.mean(dtype=soft.dtype)
        return (1 - share) * soft + share * soft[::-1], of_tokens


def mix_box(grid: Grid, kept: float, centre: Grid) -> Box:
    """A box of about the share 1 - kept of the grid around a centre, cut off at the border.

    As in the reference, an odd side loses one token.
    """
    halves = [int(size * (1 - kept) ** 0.5) // 2 for size in grid]
    first = [max(0, middle - half) for middle, half in zip(centre, halves, strict=True)]
    last = [min(size, middle + half) for size, middle, half in zip(grid, centre, halves, strict=True)]
    return first[0], first[1], last[0], last[1]


def in_box(grid: Grid, box: Box) -> np.ndarray:
    """True inside the box: (rows, columns)."""
    inside = np.zeros(grid, bool)
    inside[box[0] : box[2], box[1] : box[3]] = True
    return inside
