"""Retrieval: how well embeddings find images of the same fine class, section 2.3 of the thesis.

A collection of images with labels is searched for each query. Category-level retrieval ranks all of it; on-the-fly
classification takes the label that the nearest images vote for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from autograd.backend import to_device

from ..data.loader import Batch
from ..machine import blas_threads, cpu_count, in_order
from ..models.grafit import SIGMA
from ..models.model import Model
from .evaluate import in_pieces

NEIGHBOURS = (10, 15, 20, 25, 30)  # k of eq. 2.6
AT_ONCE = 1 << 22  # similarities, so that memory does not grow with the number of queries
LEAST = 1e-300  # of a probability whose logarithm is taken


class Embedded(NamedTuple):
    """Images as vectors of length one (N, D)."""

    vectors: np.ndarray
    labels: np.ndarray  # coarse
    samples: np.ndarray  # numbers of the images in their dataset
    logits: np.ndarray | None  # of a model with a head


class RetrievalScores(NamedTuple):
    """Mean average precisions of three rankings, and accuracies. None where the coarse class is not predicted."""

    map_cos: float
    map_conditioned: float | None  # eq. 2.5
    map_oracle: float  # with the query's coarse class known
    knn: dict[int, float]  # top-1 by number of neighbours, at most all, eq. 2.6
    coarse: float | None  # top-1 of the coarse class
    compared: int  # queries of a fine class that the collection has, which are those that count


def embed_batches(
    model: Model, batches: Iterable[Batch], threads: int | None = None, micro_batch: int | None = None
) -> Embedded:
    """Embed all images of a Loader with numbered images."""

    def work(part: Any) -> tuple[np.ndarray, ...]:
        if model.has_memory:  # its logits depend on the memory, which is made anew here
            return (to_device(model.embed(part).data, "cpu"),)
        outputs = model.outputs(part)
        return to_device(model.embedding(outputs).data, "cpu"), to_device(model.evaluated(outputs).data, "cpu")

    results: list[tuple[np.ndarray, ...]] = []
    targets = []
    for images, own in batches:
        results += in_pieces(model, images, threads, micro_batch, work)
        targets.append(own)
    if not results:
        raise ValueError("none of the images can be read")
    vectors, *logits = (np.concatenate(parts) for parts in zip(*results, strict=True))
    labels, samples = (np.concatenate([own[name] for own in targets]) for name in ("labels", "samples"))
    return Embedded(vectors, labels, samples, logits[0] if logits else None)


def spread(vectors: np.ndarray) -> tuple[float, float]:
    """Mean cosine of two different images, and the standard deviation of a value of their vectors times sqrt(D).

    Where all images have collapsed into one point these are 1 and 0, on a sphere that is filled evenly 0 and 1.
    """
    count, dim = vectors.shape
    wide = vectors.astype(np.float64)
    pairs = count * (count - 1) or 1
    return float(((wide.sum(0) ** 2).sum() - count) / pairs), float(wide.std(0).mean() * dim**0.5)


# ---- equations


def class_logits(cos: np.ndarray, labels: np.ndarray, classes: int, sigma: float = SIGMA) -> np.ndarray:
    """log sum exp(cos / sigma) over the images of each class (Q, C): eqs. 2.2 and 2.3 as a classifier."""
    sums = np.zeros((len(cos), classes))
    weights = np.exp((cos - 1) / sigma)
    for label in np.unique(labels):
        sums[:, label] = weights[:, labels == label].sum(1)
    return np.log(np.maximum(sums, LEAST)) + 1 / sigma


def log_odds(logits: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) of every class for the softmax p, without the overflow of p = 1."""
    logits = logits.astype(np.float64)
    top = logits.argmax(1)[:, None]
    shifted = logits - np.take_along_axis(logits, top, 1)
    weights = np.exp(shifted)
    others = weights.sum(1, keepdims=True) - weights
    np.put_along_axis(weights, top, 0, 1)
    np.put_along_axis(others, top, weights.sum(1, keepdims=True), 1)  # not the difference of two numbers close to 1
    return shifted - np.log(np.maximum(others, LEAST))


def ranked(scores: np.ndarray) -> np.ndarray:
    """Numbers of the images of each row, best first; of equals, the earlier."""
    return np.argsort(-scores, axis=1, kind="stable")


def average_precision(order: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Mean over the right images (Q, N) of the precision at their rank; NaN where there are none."""
    hits = np.take_along_axis(right, order, 1)
    precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
    with np.errstate(invalid="ignore"):
        return (precision * hits).sum(1) / hits.sum(1)


def on_the_fly(
    cos: np.ndarray, order: np.ndarray, labels: np.ndarray, classes: int, k: int, sigma: float = SIGMA
) -> np.ndarray:
    """Probability of each class (Q, C): the k nearest images vote with exp(cos / sigma), eq. 2.6."""
    nearest = order[:, :k]
    votes = np.exp((np.take_along_axis(cos, nearest, 1) - 1) / sigma)
    total = np.zeros((len(cos), classes))
    np.add.at(total, (np.arange(len(cos))[:, None], labels[nearest]), votes)
    return total / total.sum(1, keepdims=True)


# ---- all queries


def retrieval_scores(
    collection: Embedded,
    queries: Embedded,
    fine: np.ndarray,
    fine_of_queries: np.ndarray,
    odds: np.ndarray | None = None,
    threads: int | None = None,
) -> RetrievalScores:
    """Search the collection for every query.

    fine  fine labels of the collection; a query may have one that the collection does not have, and is left out
    odds  log odds of the coarse classes (Q, C), if they are predicted
    """
    kept, count = np.isin(fine_of_queries, fine), 1 + int(fine.max(initial=0))
    neighbours = [k for k in NEIGHBOURS if k <= len(fine)] or [len(fine)]
    if not kept.any():
        raise ValueError("no query has a fine class of the collection")

    def search(rows: np.ndarray, cos: np.ndarray) -> np.ndarray:
        wanted, coarse, order = fine_of_queries[rows], queries.labels[rows], ranked(cos)
        right, columns = wanted[:, None] == fine, []
        same = coarse[:, None] == collection.labels
        columns += [average_precision(order, right), average_precision(ranked(cos + 4 * same), right)]  # |cos| <= 1
        columns += [on_the_fly(cos, order, fine, count, k).argmax(1) == wanted for k in neighbours]
        if odds is not None:
            columns.append(average_precision(ranked(cos + odds[rows][:, collection.labels]), right))
            columns.append(odds[rows].argmax(1) == coarse)
        return np.stack(columns, axis=1)

    means = _by_rows(search, queries, collection, threads)[kept].mean(0).tolist()
    by_cos, oracle, knn = means[0], means[1], dict(zip(neighbours, means[2:], strict=False))
    conditioned, coarse = means[-2:] if odds is not None else (None, None)
    return RetrievalScores(by_cos, conditioned, oracle, knn, coarse, int(kept.sum()))


def neighbour_odds(collection: Embedded, queries: Embedded, classes: int, threads: int | None = None) -> np.ndarray:
    """Log odds of the coarse classes (Q, C), by the neighbours of each query in the collection, as in Grafit."""

    def odds(rows: np.ndarray, cos: np.ndarray) -> np.ndarray:
        return log_odds(class_logits(cos, collection.labels, classes))

    return _by_rows(odds, queries, collection, threads)


def _by_rows(
    work: Callable[[np.ndarray, np.ndarray], np.ndarray], queries: Embedded, collection: Embedded, threads: int | None
) -> np.ndarray:
    """Join work(rows, cos) for some queries at a time, with their cosines to the whole collection."""
    count, size = len(queries.vectors), max(1, AT_ONCE // len(collection.vectors))

    def some(start: int) -> np.ndarray:
        rows = np.arange(start, min(start + size, count))
        return work(rows, (queries.vectors[rows] @ collection.vectors.T).astype(np.float64))

    with blas_threads(1):
        return np.concatenate(list(in_order(some, range(0, count, size), threads or cpu_count())))
