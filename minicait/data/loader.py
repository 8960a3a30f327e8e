"""Loader: batches in an order that depends on nothing but (seed, epoch), so that any step can be found again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from autograd.random import Stream

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


class Dataset(Protocol):
    """Images as uint8 (H, W, 3) with their labels, and the names of the classes."""

    classes: Any

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]: ...


class Batch(NamedTuple):
    images: np.ndarray  # (B, 3, H, W) float32, normalised
    labels: np.ndarray  # (B,)


def normalise(images: np.ndarray) -> np.ndarray:
    """uint8 (..., H, W, 3) to float32 (..., 3, H, W), by ImageNet's mean and deviation."""
    scaled = (images.astype(np.float32) / 255 - MEAN) / STD
    return np.ascontiguousarray(np.moveaxis(scaled, -1, -3))


class Loader:
    """Batches of a dataset, which is read once and kept in memory as bytes.

    In training, batches are shuffled anew in every epoch and all are whole; otherwise they are in order and none is
    left out.
    """

    def __init__(self, dataset: Dataset, batch_size: int, training: bool = False, seed: int = 0) -> None:
        if batch_size < 1 or len(dataset) < (batch_size if training else 1):
            raise ValueError(f"a batch of {batch_size} cannot be made from {len(dataset)} images")
        self.dataset, self.batch_size, self.training, self.seed = dataset, batch_size, training, seed
        self._images: np.ndarray | None = None
        self._labels: np.ndarray | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.training else whole + bool(rest)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch `start` on."""
        images, labels = self._read()
        order = np.arange(len(labels))
        if self.training:
            Stream(self.seed, "order", step=number).generator().shuffle(order)
        for i in range(start, len(self)):
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            yield Batch(normalise(images[chosen]), labels[chosen])

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        if self._images is None or self._labels is None:
            pairs = [self.dataset[i] for i in range(len(self.dataset))]
            self._images = np.stack([image for image, _ in pairs])
            self._labels = np.array([label for _, label in pairs])
        return self._images, self._labels
