"""Evaluation: how often a model is right, and where it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd import ops
from autograd.backend import Array, array_module, to_device

from ..data.loader import Batch
from ..data.picture import normalise
from ..data.shapes import Shapes
from ..machine import blas_threads, cpu_count, keep_freed_memory
from ..models.cait import CaiT
from ..nn.record import record
from .gradients import default_micro_batch, pieces_in_order


class Scores(NamedTuple):
    top1: float  # the share of images whose class is the first guess
    top5: float  # or among the first five
    loss: float


def predict(model: CaiT, images: Any, threads: int | None = None, micro_batch: int | None = None) -> np.ndarray:
    """Logits (B, classes) in evaluation mode, in pieces on threads.

    For a single image, the products of matrices inside are spread over the threads instead: the last digits may then
    depend on their number.
    """
    if model.pos_embed.device == "cpu" and len(images) == 1:
        training = model.training
        keep_freed_memory()
        try:
            with blas_threads(threads or cpu_count()), ag.no_grad():
                return model.eval()(images).numpy()
        finally:
            model.train(training)
    return to_device(logits_in_pieces(model, images, threads, micro_batch), "cpu")


def logits_in_pieces(model: CaiT, images: Any, threads: int | None, micro_batch: int | None = None) -> Array:
    """On the model's device, and the same bits for any number of threads."""
    logits = list(_pieces(model, images, threads, micro_batch, lambda part: model(part).data))
    return logits[0] if len(logits) == 1 else array_module(logits[0]).concatenate(logits)


def _pieces(
    model: CaiT, images: Any, threads: int | None, micro_batch: int | None, work: Callable[[Any], Any]
) -> Iterator[Any]:
    """work(piece) for the pieces of a batch in evaluation mode, in order; on a GPU it is one piece, unless asked."""
    on_cpu = model.pos_embed.device == "cpu"
    size = micro_batch or (default_micro_batch(model, len(images)) if on_cpu else max(1, len(images)))
    workers = min(threads or cpu_count(), max(1, -(-len(images) // size))) if on_cpu else 1

    def piece(start: int) -> Any:
        with ag.no_grad():
            return work(images[start : start + size])

    training = model.training
    model.eval()
    try:
        yield from pieces_in_order(piece, range(0, len(images), size), workers)
    finally:
        model.train(training)


def evaluate(
    model: CaiT, batches: Iterable[Batch], threads: int | None = None, micro_batch: int | None = None
) -> Scores:
    right1 = right5 = count = 0
    loss = 0.0
    for images, labels in batches:
        logits = to_device(logits_in_pieces(model, images, threads, micro_batch), "cpu")
        logits = logits.astype(np.promote_types(logits.dtype, np.float32), copy=False)
        guesses = np.argsort(-logits, axis=1, kind="stable")[:, :5]
        hits = guesses == labels[:, None]
        right1, right5, count = right1 + int(hits[:, 0].sum()), right5 + int(hits.any(1).sum()), count + len(labels)
        loss += ops.cross_entropy(logits, labels, reduction="sum").item()
    if not count:
        raise ValueError("there is no image to evaluate on")
    return Scores(right1 / count, right5 / count, loss / count)


def attention_inside(
    model: CaiT, shapes: Shapes, count: int = 64, threads: int | None = None, micro_batch: int | None = None
) -> float:
    """The share of class attention (first layer, mean over heads, patches only) that falls on the object.

    A model that looks everywhere alike has the share of the image that the object covers.
    """
    p = model.config["patch_size"]
    rendered = [shapes.render(i) for i in range(min(count, len(shapes)))]
    images = normalise(np.stack([image for image, _, _ in rendered]))
    masks = np.stack([mask for _, mask, _ in rendered]).astype(np.float64)
    rows, columns = masks.shape[1] // p, masks.shape[2] // p
    covered = masks.reshape(-1, rows, p, columns, p).mean(axis=(2, 4)).reshape(len(masks), -1)

    def look(part: Any) -> np.ndarray:
        with record(model) as inside:
            model(part)
        return next(iter(inside.class_attention.values())).mean(axis=1)[:, 0, 1:]

    attention = np.concatenate(list(_pieces(model, images, threads, micro_batch, look)))
    return float(((attention * covered).sum(1) / attention.sum(1)).mean())
