"""Loader: batches in an order that depends only on (seed, epoch), so that training can resume at any step.

Threads read and prepare images a batch or two ahead; for a GPU, processes do (`device_loader`). Each image has its own
random stream, keyed by epoch and position, so results do not depend on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from autograd.random import Stream

from ..machine import cpu_count, in_order
from .picture import BadImageError, Picture, normalise
from .token_labels import LabelMaps
from .transforms import Transform, View, Viewing

MAX_BAD = 10_000  # images that are skipped, before the folder is taken for damaged
CHUNK = 16  # images that a thread prepares at a time, at most
AHEAD = 2  # batches that are prepared in advance


class Dataset(Protocol):
    """Images, as uint8 (H, W, 3) or Picture, with their labels, and the class names."""

    classes: Any

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, int]: ...


Edge = tuple[int, int]  # first position of a batch in its epoch, and its end
Targets = dict[str, np.ndarray]  # "labels", and others; samples on axis 0


class Batch(NamedTuple):
    images: Any  # (B, 3, H, W) float32, normalised; or on their way to a GPU, see `pixels`
    targets: np.ndarray | Targets  # labels (B,), or a dict if there is more than labels

    @property
    def labels(self) -> np.ndarray:
        return self.targets["labels"] if isinstance(self.targets, dict) else self.targets


class Sample(NamedTuple):
    view: View
    targets: dict[str, Any]  # for this image alone


class InMemory:
    """A dataset that reads every image once, shrinks it by `prepare`, and keeps the pixels in memory."""

    def __init__(self, dataset: Dataset, prepare: Callable[[Image.Image], Image.Image] | None = None) -> None:
        self.dataset, self.prepare, self.classes = dataset, prepare, dataset.classes
        self._kept: dict[int, tuple[np.ndarray, int]] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index not in self._kept:  # two threads may read the same image, which is harmless
            image, label = self.dataset[index]
            if isinstance(image, Picture):
                decoded = image.decode()
                image = np.asarray(decoded if self.prepare is None else self.prepare(decoded))
            self._kept[index] = (image, label)
        return self._kept[index]


class Loader:
    """Batches of a dataset.

    In training, every epoch is shuffled anew and an incomplete last batch is dropped; in evaluation, every image comes
    once, in order. With `repeats`, each image of an epoch comes that many times, augmented differently, and the epoch
    keeps its length (repeated augmentation). Without a transform, images are only normalised. With threads=0, batches
    are prepared on demand. With `numbered`, targets have the index of every image in the dataset, as "samples". With
    `label_maps`, they have labels of what the crop shows, as "token_labels" and "crop_labels".

    A damaged image is an error. With `skip_bad`, evaluation skips it and training replaces it by the next image; `bad`
    maps its index to the reason. `waited` counts the seconds that the consumer has waited for batches. `part` chooses
    positions of an epoch, if several processes share its batches.
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
        numbered: bool = False,
        label_maps: LabelMaps | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if len(dataset) < (batch_size if training else 1):
            hint = f"batch_size must be at most {len(dataset)}" if len(dataset) else "the dataset is empty"
            raise ValueError(f"a batch of {batch_size} cannot be made from {len(dataset)} images: {hint}")
        if label_maps is not None and not (transform is None or isinstance(transform, Viewing)):
            raise ValueError("label_maps need a transform that tells what it cuts out, as minicait.data.training does")
        self.dataset, self.batch_size, self.training, self.seed = dataset, batch_size, training, seed
        self.transform, self.repeats, self.skip_bad, self.numbered = transform, repeats, skip_bad, numbered
        self.label_maps = label_maps
        self.threads = cpu_count() if threads is None else threads
        self.part: Callable[[list[Edge]], list[Edge]] | None = None
        self.bad: dict[int, str] = {}
        self.waited = 0.0
        self._next_epoch = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole if self.training else whole + bool(rest)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over one epoch: the first call over epoch 0, the next over epoch 1, and so on."""
        return self.epoch(self.next_epoch())

    def next_epoch(self) -> int:
        """Number of the epoch that iteration is about to go over."""
        self._next_epoch += 1
        return self._next_epoch - 1

    def epoch(self, number: int, start: int = 0) -> Generator[Batch]:
        """Yield the batches of an epoch, from batch `start` on. Closing the generator ends its threads."""
        order, stream, edges = self.order(number), self.stream(number), self.edges(start)
        largest = max((end - begin for begin, end in edges), default=1)
        size = max(1, min(CHUNK, largest // max(1, self.threads)))  # a small batch still occupies all threads
        chunks = [range(i, min(i + size, end)) for begin, end in edges for i in range(begin, end, size)]

        def prepare(positions: range) -> list[Sample | None]:
            return [self.sample(order, position, stream, self._view) for position in positions]

        ready: Iterator[Any] = map(prepare, chunks)
        if self.threads:
            ready = in_order(prepare, chunks, self.threads, AHEAD * -(-largest // size))
        for begin, end in edges:
            before = time.perf_counter()
            samples = [s for _ in range(begin, end, size) for s in next(ready) if s is not None]
            if samples:  # all may have been skipped
                batch = _stacked(samples)
                self.waited += time.perf_counter() - before
                yield batch

    def edges(self, start: int = 0) -> list[Edge]:
        """First position and end of the batches of an epoch, from batch `start` on."""
        last = min(len(self.dataset), len(self) * self.batch_size)
        edges = [(i, min(i + self.batch_size, last)) for i in range(start * self.batch_size, last, self.batch_size)]
        return edges if self.part is None else self.part(edges)

    def stream(self, epoch: int) -> Stream:
        """Random numbers of the augmentation of an epoch."""
        return Stream(self.seed, "augment", step=epoch)

    def order(self, epoch: int) -> np.ndarray:
        """Indices of the images of an epoch, by position."""
        order = np.arange(len(self.dataset))
        if self.training:
            Stream(self.seed, "order", step=epoch).generator().shuffle(order)
            order = np.repeat(order[: -(-len(order) // self.repeats)], self.repeats)[: len(order)]
        return order

    def sample(
        self, order: np.ndarray, position: int, stream: Stream, look: Callable[[Any, Stream], View]
    ) -> Sample | None:
        """Return what `look` sees of the image at a position of the epoch, and its targets; None if it is skipped."""
        count = len(order) if self.training else 1
        for index in (int(order[(position + i) % len(order)]) for i in range(count)):
            try:
                image, label = self.dataset[index]
                view = look(image, stream.at(sample=position))
                targets: dict[str, Any] = {"labels": label} | ({"samples": index} if self.numbered else {})
                if self.label_maps is not None:
                    targets |= self.label_maps(index, view.box, view.flipped)
                return Sample(view, targets)
            except BadImageError as error:
                if not self.skip_bad:
                    raise
                self.skip(index, str(error))
        if self.training:
            raise BadImageError("none of the images can be read")
        return None

    def skip(self, index: int, reason: str) -> None:
        """Note that an image cannot be read; raise BadImageError if too many cannot."""
        self.bad[index] = reason
        if len(self.bad) > MAX_BAD:
            raise BadImageError(f"more than {MAX_BAD:,} images cannot be read; the last: {reason}")

    def look(self, image: Any, stream: Stream) -> View:
        """The prepared image as uint8 pixels (H, W, 3), for a transform that tells what it has cut out, or none."""
        if self.transform is None:
            return View(image if isinstance(image, np.ndarray) else np.asarray(image.decode()))
        assert isinstance(self.transform, Viewing)
        return self.transform.look(_picture(image), stream.generator())

    def _view(self, image: Any, stream: Stream) -> View:
        """The prepared image, normalised, and what it shows."""
        if self.transform is None:
            return View(normalise(self.look(image, stream).pixels))
        if isinstance(self.transform, Viewing):
            return self.transform.view(_picture(image), stream.generator())
        return View(self.transform(_picture(image), stream.generator()))


def _picture(image: Any) -> Picture:
    return image if isinstance(image, Picture) else Picture(image)


def _stacked(samples: list[Sample]) -> Batch:
    targets = {name: np.array([sample.targets[name] for sample in samples]) for name in samples[0].targets}
    return Batch(np.stack([s.view.pixels for s in samples]), targets if len(targets) > 1 else targets["labels"])


def readable_images(dataset: Dataset, transform: Transform | None, indices: Iterable[int]) -> dict[int, np.ndarray]:
    """Return prepared images by their index in the dataset; damaged images are skipped."""
    loader, order = Loader(dataset, 1, transform=transform, threads=0, skip_bad=True), np.array([*indices], int)
    samples = {int(order[i]): loader.sample(order, i, Stream(), loader._view) for i in range(len(order))}
    return {index: sample.view.pixels for index, sample in samples.items() if sample is not None}


class Chosen(NamedTuple):
    position: int  # in the dataset
    label: int
    image: np.ndarray


def some_of_each_class(dataset: Dataset, transform: Transform | None, count: int, of_each: int = 1) -> list[Chosen]:
    """Return up to `count` images, at most `of_each` of a class, in the order of labels; damaged images are skipped."""
    loader = Loader(dataset, 1, transform=transform, threads=0, skip_bad=True)
    order = np.arange(0, len(dataset), max(1, len(dataset) // (4 * of_each * len(dataset.classes))))
    found: list[Chosen] = []
    for position in range(len(order)):
        if len(found) < count and (sample := loader.sample(order, position, Stream(), loader._view)):
            label = int(sample.targets["labels"])
            if [chosen.label for chosen in found].count(label) < of_each:
                found.append(Chosen(int(order[position]), label, sample.view.pixels))
    return sorted(found, key=lambda chosen: chosen.label)
