"""Loader: batches in an order that depends on nothing but (seed, epoch), so that any step can be found again.

Images are read and prepared on threads, a batch or two ahead of the one that is asked for. What chance decides about an
image is drawn from a stream of its own, named by epoch and place, so the threads change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from autograd.random import Stream

from ..machine import cpu_count, in_order
from .picture import BadImageError, Picture, normalise
from .transforms import Transform

PIECE = 16  # images that a thread prepares at a time, at most
AHEAD = 2  # batches


class Dataset(Protocol):
    """Images, as uint8 (H, W, 3) or as Pictures, with their labels, and the names of the classes."""

    classes: Any

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, int]: ...


class Batch(NamedTuple):
    images: np.ndarray  # (B, 3, H, W) float32, normalised
    labels: np.ndarray  # (B,)


class InMemory:
    """A dataset that reads every image once and keeps its pixels, after `prepare` made them smaller."""

    def __init__(self, dataset: Dataset, prepare: Callable[[Image.Image], Image.Image] | None = None) -> None:
        self.dataset, self.prepare, self.classes = dataset, prepare, dataset.classes
        self._kept: dict[int, tuple[np.ndarray, int]] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index not in self._kept:  # two threads may both read an image; they find the same
            image, label = self.dataset[index]
            if isinstance(image, Picture):
                decoded = image.decode()
                image = np.asarray(decoded if self.prepare is None else self.prepare(decoded))
            self._kept[index] = (image, label)
        return self._kept[index]


class Some:
    """A few images of a dataset."""

    def __init__(self, dataset: Dataset, places: Sequence[int]) -> None:
        self.dataset, self.places, self.classes = dataset, places, dataset.classes

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.dataset[self.places[index]]


class Loader:
    """Batches of a dataset.

    In training, they are shuffled anew in every epoch and all are whole; otherwise they are in order and none is left
    out. With `repeats`, an epoch of as many images has every one of its images that many times, each time prepared
    otherwise (repeated augmentation). Without a transform, images are taken as they are.

    Without threads, batches are made when they are asked for.

    A damaged image is an error, or, with `skip_bad`, left out in evaluation and replaced by the next one in training;
    `bad` collects what was wrong. `waited` counts the seconds that the taker of the batches had to wait for them.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        training: bool = False,
        seed: int = 0,
        transform: Transform | None = None,
        repeats: int = 1,
        threads: int | None = None,
        skip_bad: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if len(dataset) < (batch_size if training else 1):
            hint = f"batch_size must be at most {len(dataset)}" if len(dataset) else "the dataset is empty"
            raise ValueError(f"a batch of {batch_size} cannot be made from {len(dataset)} images: {hint}")
        self.dataset, self.batch_size, self.training, self.seed = dataset, batch_size, training, seed
        self.transform, self.repeats, self.skip_bad = transform, repeats, skip_bad
        self.threads = cpu_count() if threads is None else threads
        self.bad: dict[int, str] = {}
        self.waited = 0.0
        self._asked = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.training else whole + bool(rest)

    def __iter__(self) -> Iterator[Batch]:
        """One epoch after the other, each time it is asked."""
        self._asked += 1
        return self.epoch(self._asked - 1)

    def epoch(self, number: int, start: int = 0) -> Generator[Batch]:
        """The batches of an epoch, from batch `start` on. Closing it ends its threads."""
        order = self._order(number)
        stream = Stream(self.seed, "augment", step=number)
        last = min(len(order), len(self) * self.batch_size)
        edges = [(i, min(i + self.batch_size, last)) for i in range(start * self.batch_size, last, self.batch_size)]
        size = max(1, min(PIECE, self.batch_size // max(1, self.threads)))  # small batches are for all threads, too
        pieces = [range(i, min(i + size, end)) for begin, end in edges for i in range(begin, end, size)]

        def prepare(places: range) -> list[tuple[np.ndarray, int] | None]:
            return [self._sample(order, place, stream) for place in places]

        ready: Iterator[Any] = map(prepare, pieces)
        if self.threads:
            ready = in_order(prepare, pieces, self.threads, AHEAD * -(-self.batch_size // size))
        for begin, end in edges:
            before = time.perf_counter()
            samples = [s for _ in range(begin, end, size) for s in next(ready) if s is not None]
            if samples:  # unless all were bad
                batch = Batch(np.stack([image for image, _ in samples]), np.array([label for _, label in samples]))
                self.waited += time.perf_counter() - before
                yield batch

    def _order(self, epoch: int) -> np.ndarray:
        order = np.arange(len(self.dataset))
        if self.training:
            Stream(self.seed, "order", step=epoch).generator().shuffle(order)
            order = np.repeat(order[: -(-len(order) // self.repeats)], self.repeats)[: len(order)]
        return order

    def _sample(self, order: np.ndarray, place: int, stream: Stream) -> tuple[np.ndarray, int] | None:
        """The prepared image at a place of the epoch, and its label."""
        count = len(order) if self.training else 1
        for index in (int(order[(place + i) % len(order)]) for i in range(count)):
            try:
                image, label = self.dataset[index]
                if self.transform is None:
                    return normalise(image if isinstance(image, np.ndarray) else np.asarray(image.decode())), label
                picture = image if isinstance(image, Picture) else Picture(image)
                return self.transform(picture, stream.at(sample=place).generator()), label
            except BadImageError as error:
                if not self.skip_bad:
                    raise
                self.bad[index] = str(error)
        if self.training:
            raise BadImageError("not one of the images can be read")
        return None


def some_of_each_class(dataset: Dataset, transform: Transform | None, count: int) -> dict[int, np.ndarray]:
    """Images of different classes, by label and in its order, `count` at most; damaged ones are passed over."""
    apart = range(0, len(dataset), max(1, len(dataset) // (4 * len(dataset.classes))))
    found: dict[int, np.ndarray] = {}
    for (image,), (label,) in Loader(Some(dataset, apart), 1, transform=transform, threads=0, skip_bad=True):
        found.setdefault(int(label), image)
        if len(found) >= count:
            break
    return dict(sorted(found.items()))
