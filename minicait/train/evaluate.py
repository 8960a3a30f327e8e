"""Evaluation: accuracy, loss, and attention inside the object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd import Tensor, ops
from autograd.backend import Array, array_module, constant, to_device
from autograd.kernels import softmax

from ..data.loader import Batch
from ..data.picture import BadImageError, Picture, normalise
from ..data.shapes import Shapes
from ..data.transforms import Transform
from ..machine import blas_threads, cpu_count, in_order, keep_freed_memory
from ..models.maps import image_maps
from ..models.model import Model
from ..nn import Module, evaluation_mode
from ..nn.record import record
from .micro_batch import default_micro_batch
from .ranks import ALONE, Ranks

FILES = 32  # that are predicted at a time
NOT_FINITE = "the model's outputs are not finite: its weights are damaged"


class Scores(NamedTuple):
    top1: float  # share of images whose class is the first guess
    top5: float  # or among the first five
    loss: float
    top1_of_data_classes: float | None = None  # share whose class is the first guess among those of the data


class Guesses:
    """The most probable class of every image and its probability, beside the label, in the order of evaluation."""

    def __init__(self) -> None:
        self.labels = np.zeros(0, int)
        self.classes = np.zeros(0, int)
        self.probabilities = np.zeros(0)

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        p = softmax(logits, -1)
        self._append(labels, p.argmax(-1), p.max(-1))

    def extend(self, other: Guesses) -> None:
        self._append(other.labels, other.classes, other.probabilities)

    def _append(self, labels: np.ndarray, classes: np.ndarray, probabilities: np.ndarray) -> None:
        self.labels = np.append(self.labels, labels)
        self.classes = np.append(self.classes, classes)
        self.probabilities = np.append(self.probabilities, probabilities)

    def confusion(self, count: int) -> np.ndarray:
        """Images by true (row) and predicted (column) class, among `count` classes."""
        return np.bincount(self.labels * count + self.classes, minlength=count**2).reshape(count, count)

    def most_confused(self, count: int) -> np.ndarray:
        """The most frequent kinds of wrong guesses, each as true class, predicted class, and number of images."""
        wrong = np.column_stack([self.labels, self.classes])[self.labels != self.classes]
        pairs, images = np.unique(wrong, axis=0, return_counts=True)
        return np.column_stack([pairs, images])[np.argsort(-images, kind="stable")][:count]

    def worst(self, count: int) -> np.ndarray:
        """Positions of the wrong guesses that the model was most sure of."""
        wrong = np.flatnonzero(self.labels != self.classes)
        return wrong[np.argsort(-self.probabilities[wrong], kind="stable")][:count]


def predict(model: Module, images: Any, threads: int | None = None, micro_batch: int | None = None) -> np.ndarray:
    """Logits (B, C) in evaluation mode, by micro-batches on threads.

    For a single image, the matrix products inside are spread over the threads instead: the last digits may then depend
    on their number. ValueError if a logit is not finite.
    """
    if model.device == "cpu" and len(images) == 1:
        keep_freed_memory()
        with blas_threads(threads or cpu_count()), ag.no_grad(), evaluation_mode(model), np.errstate(all="ignore"):
            logits = model(_beside(model, images)).numpy()
    else:
        logits = to_device(predicted_logits(model, images, threads, micro_batch), "cpu")
    if not np.isfinite(logits).all():
        raise ValueError(NOT_FINITE)
    return logits


def predict_files(
    model: Module,
    paths: Sequence[Path],
    transform: Transform,
    threads: int | None = None,
    micro_batch: int | None = None,
    skip: Callable[[Path, BadImageError], None] | None = None,
) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield path and logits (C,) of image files, in order. Threads read the next files while a batch is computed.

    A file that cannot be read raises BadImageError, unless `skip(path, error)` takes it.
    """

    def read(path: Path) -> np.ndarray | BadImageError:
        try:
            return transform(Picture(path), None)
        except BadImageError as error:
            return error

    def readable() -> Iterator[tuple[Path, np.ndarray]]:
        images = in_order(read, paths, threads or cpu_count(), ahead=2 * FILES)
        for path, image in zip(paths, images, strict=True):
            if not isinstance(image, BadImageError):
                yield path, image
            elif skip is not None:
                skip(path, image)
            else:
                raise image

    images = readable()
    while batch := list(islice(images, FILES)):
        logits = predict(model, np.stack([image for _, image in batch]), threads, micro_batch)
        yield from zip((path for path, _ in batch), logits, strict=True)


def predicted_logits(model: Module, images: Any, threads: int | None, micro_batch: int | None = None) -> Array:
    """Logits on the model's device, the same bits for any number of threads."""
    return _joined(in_pieces(model, images, threads, micro_batch, lambda part: model(part).data))


def embedded(model: Model, images: Any, threads: int | None = None, micro_batch: int | None = None) -> Array:
    """Embeddings (B, d) in evaluation mode on the model's device, the same bits for any number of threads."""
    return _joined(in_pieces(model, images, threads, micro_batch, lambda part: model.embed(part).data))


def _joined(pieces: Iterable[Array]) -> Array:
    first, *others = pieces
    return array_module(first).concatenate([first, *others]) if others else first


def in_pieces(
    model: Module, images: Any, threads: int | None, micro_batch: int | None, work: Callable[[Any], Any]
) -> Iterator[Any]:
    """Yield work(micro-batch) in evaluation mode, in order. On a GPU the batch stays whole unless asked."""
    on_cpu = model.device == "cpu"
    size = micro_batch or (default_micro_batch(model, len(images), training=False) if on_cpu else max(1, len(images)))
    starts = range(0, len(images), size)
    workers = min(threads or cpu_count(), max(1, len(starts))) if on_cpu else 1

    def piece(start: int) -> Any:
        with ag.no_grad(), np.errstate(all="ignore"):  # callers look at the result, not at warnings
            return work(_beside(model, images[start : start + size]))

    keep_freed_memory()
    with evaluation_mode(model), blas_threads(1):
        yield from map(piece, starts) if workers == 1 else in_order(piece, starts, workers)


def _beside(model: Module, images: Any) -> Any:
    """Images on the model's device, in its float dtype; Tensors are taken as they are."""
    _, like = next(model.named_tensors(), (None, None))
    return images if isinstance(images, Tensor) or like is None else constant(images, like=like.data)


def evaluate(
    model: Module,
    batches: Iterable[Batch],
    threads: int | None = None,
    micro_batch: int | None = None,
    data_classes: np.ndarray | None = None,
    guesses: Guesses | None = None,
    ranks: Ranks = ALONE,
) -> Scores:
    """Scores of a model; `data_classes` are those of its outputs that occur as labels. `guesses` collects the rest.

    Of several ranks each has some of the batches.
    """
    found = []
    for images, targets in batches:
        labels = targets["labels"] if isinstance(targets, dict) else targets
        logits = to_device(predicted_logits(model, images, threads, micro_batch), "cpu")
        logits = logits.astype(np.promote_types(logits.dtype, np.float32), copy=False)
        hits = np.argsort(-logits, axis=1, kind="stable")[:, :5] == labels[:, None]
        counts, own = [hits[:, 0].sum(), hits.any(1).sum(), len(labels), 0], Guesses()
        if data_classes is not None:
            counts[3] = (data_classes[logits[:, data_classes].argmax(1)] == labels).sum()
        with np.errstate(all="ignore"):  # a loss that is not finite says enough
            if guesses is not None:
                own.add(logits, labels)
            loss = ops.cross_entropy(logits, labels, reduction="sum").item()
        found.append((counts, loss, own))
    found = ranks.joined(found)
    if not found:
        raise ValueError("there is no image to evaluate on")
    right1, right5, count, right_of_data = (int(total) for total in np.sum([counts for counts, _, _ in found], axis=0))
    if guesses is not None:
        for _, _, own in found:
            guesses.extend(own)
    of_data = None if data_classes is None else right_of_data / count
    return Scores(right1 / count, right5 / count, sum(loss for _, loss, _ in found) / count, of_data)


def attention_inside(
    model: Model, shapes: Shapes, count: int = 64, threads: int | None = None, micro_batch: int | None = None
) -> float | None:
    """Share of the model's attention that falls on the object; None if it has no map of where it looks.

    The map is the first of `image_maps`: for CaiT, class attention in its first layer, mean over heads, patches only.
    Uniform attention gives the share of the image that the object covers.
    """
    rendered = [shapes.render(i) for i in range(min(count, len(shapes)))]
    images = normalise(np.stack([image for image, _, _ in rendered]))
    masks = np.stack([mask for _, mask, _ in rendered])

    def look(part: Any) -> list[np.ndarray]:
        with record(model.body) as inside:
            outputs = model.outputs(part)
        return image_maps(inside, outputs, model.config)[:1]

    maps = []
    for found in in_pieces(model, images, threads, micro_batch, look):
        if not found:
            return None
        maps += found
    return float(share_inside(np.concatenate(maps), masks, model.grid).mean())


def share_inside(attention: np.ndarray, masks: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Share of the attention to patches (B, N), in rows and columns of a grid, that falls on objects (B, H, W)."""
    (rows, columns), (count, height, width) = grid, masks.shape
    patches = masks.astype(np.float64).reshape(count, rows, height // rows, columns, width // columns)
    covered = patches.mean(axis=(2, 4)).reshape(count, -1)
    return (attention * covered).sum(1) / attention.sum(1)
