"""MixToken: a box of tokens exchanged between two images of a batch (LV-ViT, eqs. 8 to 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import Tensor, ops, random
from autograd.backend import is_array, to_device

from .module import Module

Grid = tuple[int, int]
Box = tuple[int, int, int, int]  # first row, first column, and those behind the last


class MixToken(Module):
    """In training, if enabled, exchange a box of tokens with the image at the other end of the batch.

    A recipe's `mix_token` enables it. There is one box for the whole batch. It is drawn from the current random stream,
    so that `labels`, called under the same stream, mixes the labels alike.
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
        """Replace the tokens inside the box by those of the reversed batch; x is (B, rows, columns, dim)."""
        if not self.active:
            return x
        _, rows, columns, _ = x.shape
        inside = in_box((rows, columns), self.box((rows, columns)))
        return ops.where(inside[..., None], ops.flip(x, 0), x)

    def labels(self, labels: Any, grid: Grid, classes: int, of_tokens: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the images (B, C), mixed by area, and of every token, by the image it comes from.

        of_tokens  labels of the tokens before mixing, (B, N) or (B, N, C); by default each has that of its image
        """
        labels, inside = _on_host(labels), in_box(grid, self.box(grid)).reshape(-1)
        tokens = labels[:, None] if of_tokens is None else _on_host(of_tokens)
        place = inside.reshape(1, -1, *(1,) * (tokens.ndim - 2))
        soft = labels
        if labels.ndim == 1:
            soft = np.zeros((len(labels), classes), np.float32)
            soft[np.arange(len(labels)), labels] = 1
        soft = soft.astype(np.promote_types(soft.dtype, np.float32), copy=False)
        share = soft.dtype.type(inside.mean())
        return (1 - share) * soft + share * soft[::-1], np.where(place, tokens[::-1], tokens)


def _on_host(x: Any) -> np.ndarray:
    x = x.data if isinstance(x, Tensor) else x
    return to_device(x, "cpu") if is_array(x) else np.asarray(x)


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
