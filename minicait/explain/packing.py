"""Attention between all patches, small enough for a page: rounded within each row, deflated, as text.

CaiT-XXS24 at 224 pixels has 24 x 4 x 196 x 196 weights of attention, 3.7 million, and as many after the heads are
mixed. Those need not be stored, since mixing is linear: after = W before + b, which the page computes. The others are
rounded to a few steps between the smallest and the largest of their row, as many as there is room for.
"""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

import numpy as np

ROOM = 2_050_000  # bytes, before they become text, which takes a third more
STEPS = (255, 127, 63, 47, 31, 23, 15)


class Packed(NamedTuple):
    """For each row its smallest value and its span, in float16; then for each value its step, in uint8."""

    text: str
    steps: int
    layers: list[int]  # those that there was room for


def pack(maps: np.ndarray, room: int = ROOM) -> Packed:
    """Of maps (depth, heads, N, N). Where even few steps are too much, layers are left out at even distances."""
    layers = list(range(len(maps)))
    while True:
        for steps in STEPS:
            content = _deflated(maps[layers], steps)
            if len(content) <= room or (steps == STEPS[-1] and len(layers) <= 1):
                return Packed(base64.b64encode(content).decode("ascii"), steps, layers)
        fewer = max(1, min(len(layers) - 1, len(layers) * room // len(content)))
        layers = sorted({round(i) for i in np.linspace(len(maps) - 1, 0, fewer)})


def unpack(packed: Packed, heads: int, patches: int) -> np.ndarray:
    """The way back, as the page goes it."""
    content = zlib.decompress(base64.b64decode(packed.text))
    shape = (len(packed.layers), heads, patches)
    count = int(np.prod(shape))
    low, span = np.frombuffer(content, "<f2", 2 * count).astype(np.float32).reshape(2, *shape)
    codes = np.frombuffer(content, np.uint8, offset=4 * count).reshape(*shape, patches)
    return low[..., None] + codes * (span / packed.steps)[..., None]


def _deflated(maps: np.ndarray, steps: int) -> bytes:
    low = maps.min(axis=-1).astype("<f2")
    span = (maps.max(axis=-1) - low.astype(np.float32)).astype("<f2")
    wide = np.maximum(span.astype(np.float32), 1e-12)[..., None]
    codes = np.clip(np.rint((maps - low.astype(np.float32)[..., None]) / wide * steps), 0, steps).astype(np.uint8)
    deflate = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)  # nothing in them repeats: faster so, and smaller
    return deflate.compress(low.tobytes() + span.tobytes() + codes.tobytes()) + deflate.flush()
