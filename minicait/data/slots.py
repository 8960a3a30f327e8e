"""Slots: memory for batches that worker processes write, and a GPU copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..processes import shared
from .erasing import Erased
from .loader import Sample, Targets

STEPS = 25  # of noise in a unit: a byte then reaches from -5.1 to 5.1, and one value in three million is beyond
ZERO = 128  # the byte of noise 0


class Slot:
    """Room for a batch of samples like this one.

    A GPU gets boxes and pixels in one copy. Erasing is noise in a normalised image, which in float32 would be four
    times the bytes of the pixels in its place. So it travels in place of these pixels, as one byte for a value: the
    same noise as on a CPU, rounded to 1/25, where a pixel is rounded to 1/57 (1/255, divided by the standard
    deviation). `boxes` says where it is.
    """

    def __init__(self, batch_size: int, sample: Sample) -> None:
        pixels, head = sample.view.pixels, 16 * batch_size
        self.bytes = shared((head + batch_size * pixels.size,), np.uint8)
        self.boxes = self.bytes[:head].view(np.int32).reshape(batch_size, 4)  # erased: top, bottom, left, right
        self.pixels = self.bytes[head:].reshape(batch_size, *pixels.shape)
        like = {name: np.asarray(value) for name, value in sample.targets.items()}
        self.targets = {name: shared((batch_size, *value.shape), value.dtype) for name, value in like.items()}

    def put(self, row: int, sample: Sample) -> None:
        if sample.view.pixels.shape != self.pixels.shape[1:]:
            sizes = (f"{width} x {height}" for height, width, *_ in (self.pixels.shape[1:], sample.view.pixels.shape))
            raise ValueError(f"images must have one size, got {' and '.join(sizes)}: give the loader a transform")
        self.pixels[row], self.boxes[row] = sample.view.pixels, 0
        if sample.view.erased is not None:
            self._erase(row, sample.view.erased)
        for name, values in self.targets.items():
            values[row] = sample.targets[name]

    def _erase(self, row: int, erased: Erased) -> None:
        self.boxes[row] = top, bottom, left, right = erased.box
        steps = np.rint(erased.noise * np.float32(STEPS)) + ZERO
        self.pixels[row, top:bottom, left:right] = np.moveaxis(steps.clip(0, 255), 0, -1)

    def keep(self, rows: Sequence[int]) -> None:
        """Move these rows to the front, in place of others that were skipped."""
        for values in (self.boxes, self.pixels, *self.targets.values()):
            values[: len(rows)] = values[list(rows)]

    def size(self, count: int) -> int:
        """Bytes that hold the boxes and the pixels of the first `count` samples."""
        return self.boxes.nbytes + count * self.pixels[0].nbytes

    def copied_targets(self, count: int) -> np.ndarray | Targets:
        """Targets of a Batch, which outlive the slot's next batch."""
        targets = {name: values[:count].copy() for name, values in self.targets.items()}
        return targets if len(targets) > 1 else targets["labels"]
