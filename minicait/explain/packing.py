"""Compression of the attention between all patches: quantised by row, deflated, encoded as text.

CaiT-XXS24 at 224 pixels has 24 x 4 x 196 x 196 attention weights, 3.7 million, and as many after the heads are mixed.
The latter are not stored: mixing is linear, after = W before + b, and the page computes it. The former are rounded to
steps between the minimum and the maximum of their row, as fine as fits.
"""

from __future__ import annotations

import base64
import zlib
from typing import NamedTuple

import numpy as np

MAX_BYTES = 2_050_000  # before base64, which adds a third
STEPS = (255, 127, 63, 47, 31, 23, 15)


class Packed(NamedTuple):
    """Minimum and range of each row in float16, then the step of each value in uint8; deflated, in base64."""

    text: str
    steps: int
    layers: list[int]  # those that fit


def pack(maps: np.ndarray, max_bytes: int = MAX_BYTES) -> Packed:
    """Pack maps (depth, heads, N, N). If even the coarsest steps do not fit, only evenly spaced layers are kept."""
    layers = list(range(len(maps)))
    while True:
        for steps in STEPS:
            content = _deflated(maps[layers], steps)
            if len(content) <= max_bytes or (steps == STEPS[-1] and len(layers) <= 1):
                return Packed(base64.b64encode(content).decode("ascii"), steps, layers)
        fewer = max(1, min(len(layers) - 1, len(layers) * max_bytes // len(content)))
        layers = sorted({round(i) for i in np.linspace(len(maps) - 1, 0, fewer)})


def _deflated(maps: np.ndarray, steps: int) -> bytes:
    low = maps.min(axis=-1).astype("<f2")
    span = (maps.max(axis=-1) - low.astype(np.float32)).astype("<f2")
    wide = np.maximum(span.astype(np.float32), 1e-12)[..., None]
    codes = np.clip(np.rint((maps - low.astype(np.float32)[..., None]) / wide * steps), 0, steps).astype(np.uint8)
    deflate = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)  # nothing repeats: faster and smaller without matching
    return deflate.compress(low.tobytes() + span.tobytes() + codes.tobytes()) + deflate.flush()
