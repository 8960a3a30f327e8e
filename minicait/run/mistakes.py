"""The last evaluation of a run: which classes the model confuses, and the mistakes that it was most sure of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from ..data.loader import Dataset, readable_images
from ..data.transforms import Transform
from ..explain.attention import saliency_maps
from ..models import Model
from ..train.evaluate import Guesses
from .film import as_bytes, within

MATRIX = 20  # classes, up to which a confusion matrix is readable
PAIRS = 20  # of classes that are confused most often, of which a list is shown instead
WORST = 8  # mistakes


@dataclass(frozen=True)
class Evaluation:
    """Arrays, so that a run can save them."""

    epoch: np.ndarray  # ()
    totals: np.ndarray  # (C,): images of every class
    correct: np.ndarray  # (C,): those of them that are classified correctly
    cells: np.ndarray  # (M, 3): true class, predicted class, images; with many classes only the worst of them
    worst: np.ndarray  # (W, 3): position in the dataset, true class, predicted class
    probabilities: np.ndarray  # (W,)
    maps: np.ndarray  # (W, rows, columns) uint8, or (0, rows, columns) if the model has none

    @property
    def matrix(self) -> np.ndarray | None:
        """Images by true (row) and predicted (column) class, unless there are too many classes."""
        if (count := len(self.totals)) > MATRIX:
            return None
        matrix = np.zeros((count, count), int)
        matrix[self.cells[:, 0], self.cells[:, 1]] = self.cells[:, 2]
        return matrix

    def arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def summary(epoch: int, guesses: Guesses, classes: int, skipped: Collection[int], grid: tuple[int, int]) -> Evaluation:
    """Summarise the guesses of an evaluation, which skipped some positions of the dataset."""
    if classes <= MATRIX:
        confusion = guesses.confusion(classes)
        found = np.argwhere(confusion)
        cells = np.column_stack([found, confusion[confusion > 0]])
    else:
        cells = guesses.most_confused(PAIRS)
    hits = guesses.labels[guesses.labels == guesses.classes]
    totals, correct = (np.bincount(labels, minlength=classes) for labels in (guesses.labels, hits))
    worst = guesses.worst(WORST)
    seen = np.setdiff1d(np.arange(len(guesses.labels) + len(skipped)), list(skipped))
    mistakes = np.column_stack([seen[worst], guesses.labels[worst], guesses.classes[worst]])
    p = np.clip(np.nan_to_num(guesses.probabilities[worst]), 0, 1)
    return Evaluation(np.array(epoch), totals, correct, cells, mistakes, p, np.zeros((0, *grid), np.uint8))


def with_maps(
    evaluation: Evaluation,
    model: Model,
    images: Dataset,
    transform: Transform | None,
    threads: int | None = None,
    micro_batch: int | None = None,
) -> Evaluation:
    """Add where the model looks in the images of its worst mistakes."""
    found = readable_images(images, transform, evaluation.worst[:, 0].tolist())
    if not len(found) == len(evaluation.worst) > 0:
        return evaluation
    maps, _ = saliency_maps(model, np.stack(list(found.values())), threads, micro_batch)
    return replace(evaluation, maps=as_bytes(maps[0])) if maps else evaluation


def loaded(arrays: Mapping[str, np.ndarray], images: int, grid: tuple[int, int], classes: int) -> Evaluation:
    """The evaluation in `arrays`; ValueError if a dataset of so many images and classes cannot have it."""
    found = Evaluation(**arrays)
    count = len(found.worst)
    shapes = {"epoch": (), "totals": (classes,), "correct": (classes,), "cells": (len(found.cells), 3),
              "worst": (count, 3), "probabilities": (count,), "maps": (len(found.maps), *grid)}  # fmt: skip
    if {name: array.shape for name, array in found.arrays().items()} != shapes or len(found.maps) not in (0, count):
        raise ValueError("the evaluation has another shape")
    types = {"maps": np.uint8, "probabilities": np.float64}
    if any(array.dtype != types.get(name, np.int64) for name, array in found.arrays().items()):
        raise ValueError("the evaluation has other types")
    labels = np.concatenate([found.cells[:, :2].ravel(), found.worst[:, 1:].ravel()])
    counts = np.concatenate([found.totals, found.correct, found.cells[:, 2]])
    right = within(labels, classes - 1) and within(counts, images) and within(found.worst[:, 0], images - 1)
    if not right or not within(found.probabilities, 1):
        raise ValueError("the evaluation has impossible values")
    return found
