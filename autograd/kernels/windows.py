"""The values under a convolution's kernel at each of its positions. Images are channels-last, (B, H, W, C).

A position reads a window of kh x kw pixels. Positions are `stride` pixels apart, and the first starts `padding` pixels
outside of the image, where everything is zero. Windows are views: those that overlap share memory.
"""

from __future__ import annotations

from typing import NamedTuple

from ..backend import Array, array_module

Pair = tuple[int, int]  # along rows and columns


class Geometry(NamedTuple):
    """Size, stride and padding of a convolution's kernel."""

    kernel: Pair
    stride: Pair
    padding: Pair

    def output_size(self, height: int, width: int) -> Pair:
        """Positions of the kernel along both axes; less than one where it is larger than the padded image."""
        rows, columns = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip((height, width), *self, strict=True)
        )
        return rows, columns

    def for_gradient(self) -> Geometry | None:
        """Geometry of the convolution of g that gives dx; None if dx is no convolution."""
        (height, width), (top, left) = self.kernel, self.padding
        padding = height - 1 - top, width - 1 - left
        return self._replace(padding=padding) if self.stride == (1, 1) and min(padding) >= 0 else None


def windows(x: Array, kernel: Pair, stride: Pair) -> Array:
    """(B, H, W, C) viewed as (B, rows, columns, kh, kw, C)."""
    batch, height, width, channels = x.shape
    rows, columns = Geometry(kernel, stride, (0, 0)).output_size(height, width)
    of_sample, of_row, of_column, of_channel = x.strides
    return array_module(x).lib.stride_tricks.as_strided(
        x,
        (batch, rows, columns, *kernel, channels),
        (of_sample, of_row * stride[0], of_column * stride[1], of_row, of_column, of_channel),
    )


def padded_zeros(x: Array, samples: int, padding: Pair, dtype: object = None) -> Array:
    """Zeros, with room for some samples of x and their padding."""
    _, height, width, channels = x.shape
    shape = samples, height + 2 * padding[0], width + 2 * padding[1], channels
    return array_module(x).zeros(shape, dtype or x.dtype)


def inside(padded: Array, padding: Pair) -> Array:
    """An image without its padding, as a view."""
    (top, left), (height, width) = padding, padded.shape[1:3]
    return padded[:, top : height - top, left : width - left]
