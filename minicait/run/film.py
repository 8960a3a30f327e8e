"""A film of where a model looks: maps of a few fixed validation images, a frame per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..data.loader import Chosen, Dataset, some_of_each_class
from ..data.transforms import Transform
from ..explain.attention import saliency_maps
from ..models import Model

IMAGES = 6
MAX_FRAMES, MAX_BYTES = 120, 600_000  # of a film: those of a longer run are more than an epoch apart


class Frame(NamedTuple):
    """Maps and guesses of a model for the images after an epoch; 0: before training."""

    epoch: int
    maps: np.ndarray  # (B, rows, columns) uint8
    guesses: np.ndarray  # (B,)
    probabilities: np.ndarray  # (B,) of the guesses


class Film:
    """Frames, and the images that they show. A model that has no maps of where it looks has no frames."""

    def __init__(self, dataset: Dataset, transform: Transform | None, epochs: int, grid: tuple[int, int]) -> None:
        self.dataset, self.transform, self.epochs, self.grid = dataset, transform, epochs, grid
        most = max(2, min(MAX_FRAMES, MAX_BYTES // (IMAGES * grid[0] * grid[1])))
        self.stride = -(-epochs // most)
        self.frames: list[Frame] = []

    @cached_property
    def images(self) -> list[Chosen]:
        """Images of different classes or, if there are few classes, several of each."""
        of_each = -(-IMAGES // len(self.dataset.classes))
        return some_of_each_class(self.dataset, self.transform, IMAGES, of_each)

    def add(self, epoch: int, model: Model, threads: int | None = None, micro_batch: int | None = None) -> None:
        """Add the frame of an epoch, if the film has one of it, and drop those of later epochs."""
        self.cut(epoch)
        if not self.images or (epoch % self.stride and epoch != self.epochs):
            return
        maps, p = saliency_maps(model, np.stack([chosen.image for chosen in self.images]), threads, micro_batch)
        if maps:
            self.frames.append(Frame(epoch, as_bytes(maps[0]), p.argmax(-1), _finite(p.max(-1))))

    def cut(self, epoch: int) -> None:
        """Drop the frames of this epoch and later ones."""
        self.frames = [frame for frame in self.frames if frame.epoch < epoch]

    def arrays(self) -> dict[str, np.ndarray]:
        """The frames as arrays, to be saved; empty if there are none."""
        if not self.frames:
            return {}
        columns = (np.stack(column) for column in zip(*self.frames, strict=True))
        return dict(zip(Frame._fields, columns, strict=True))

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the frames of `arrays`; ValueError if this film cannot have them."""
        if not arrays:
            self.frames = []
            return
        epochs, maps, guesses, p = (arrays[name] for name in Frame._fields)
        count, images = len(epochs), len(self.images)
        if [array.dtype for array in (epochs, maps, guesses, p)] != [np.int64, np.uint8, np.int64, np.float32]:
            raise ValueError("the film has other types")
        shapes = [(count,), (count, images, *self.grid), (count, images), (count, images)]
        if [array.shape for array in (epochs, maps, guesses, p)] != shapes:
            raise ValueError("the film has another shape")
        right = within(epochs, self.epochs) and within(guesses, len(self.dataset.classes) - 1) and within(p, 1)
        if not right or (np.diff(epochs) <= 0).any():
            raise ValueError("the film has impossible values")
        self.frames = [Frame(int(epochs[i]), maps[i], guesses[i], p[i]) for i in range(count)]


def as_bytes(maps: np.ndarray) -> np.ndarray:
    """Maps from 0 to 1 as uint8."""
    return np.rint(255 * _finite(maps)).astype(np.uint8)


def within(values: np.ndarray, most: float) -> bool:
    """True if all values are from 0 to `most`."""
    return bool(((values >= 0) & (values <= most)).all())


def _finite(values: np.ndarray) -> np.ndarray:
    """Values from 0 to 1, which overflowed activations may not be."""
    return np.clip(np.nan_to_num(values), 0, 1).astype(np.float32)
