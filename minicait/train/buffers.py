"""Buffers, such as running averages, and how to undo what a batch wrote into them."""

from __future__ import annotations

from collections.abc import Iterable

from autograd.backend import Array

from ..nn import Buffer


def copies(buffers: Iterable[Buffer]) -> list[tuple[Buffer, Array]]:
    """Buffers with their present values."""
    return [(buffer, buffer.data.copy()) for buffer in buffers]


def restore(buffers: list[tuple[Buffer, Array]]) -> None:
    """Give buffers the values that they had."""
    for buffer, before in buffers:
        buffer.data[...] = before
