"""Token labels (LV-ViT, section 3.2): a label for every token of a crop, cut out of the label map of its image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.kernels import softmax

from .label_file import LabelFile, image_names
from .picture import BadImageError
from .roi_align import Grid, roi_align
from .transforms import Fractions


class LabelMaps:
    """The label maps of a dataset's images, for a Loader: `maps(index, box, flipped)` returns the labels of a crop.

    token_labels  of every token (N, C), from the top left to the bottom right
    crop_labels   of the crop as a whole (C,), for re-labeling

    Labels are float32 of all classes: for 14 x 14 tokens and 1000 classes 784 kB for each image, more than the 602 kB
    of its 224 x 224 pixels. The Loader holds them as it does the pixels, of up to two batches in advance.
    """

    def __init__(self, file: LabelFile, images: Any, grid: Grid) -> None:
        """Find the map of each image. `grid` is the rows and columns of tokens."""
        if list(images.classes) != file.description.classes:
            raise ValueError(f"{file.path.name} is for other classes: {_difference(file, images.classes)}")
        self.file, self.grid = file, grid
        self._numbers = file.numbers(image_names(images))

    def __call__(self, index: int, box: Fractions, flipped: bool) -> dict[str, np.ndarray]:
        number = int(self._numbers[index])
        logits, classes = self.file.read(number)
        if not np.isfinite(logits).all():
            name = self.file.images[number].decode(errors="backslashreplace")
            raise BadImageError(f"{name} has no label map: it could not be read when maps were made")
        scores = dense(logits, classes, len(self.file.description.classes))
        return {
            "token_labels": labels_of_crop(scores, box, flipped, self.grid).reshape(-1, scores.shape[-1]),
            "crop_labels": labels_of_crop(scores, box, flipped, (1, 1)).reshape(-1),
        }


def dense(logits: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Logits (rows, columns, count) in float32, of which those that are not stored are 0."""
    scores = np.zeros((*logits.shape[:2], count), np.float32)
    np.put_along_axis(scores, classes.astype(np.int64), logits.astype(np.float32), axis=-1)
    return scores


def labels_of_crop(scores: np.ndarray, box: Fractions, flipped: bool, grid: Grid) -> np.ndarray:
    """Probabilities (*grid, C) of a crop, from the logits (rows, columns, C) of its image.

    The reference smooths such labels by adding s / C to (1 - s + s / C) y, so that they sum to 1 + s / C. Here they are
    smoothed once, by the objective, (1 - s) y + s / C, and sum to 1.
    """
    rows, columns, _ = scores.shape
    left, top, right, bottom = box
    cells = (left * columns - 0.5, top * rows - 0.5, right * columns - 0.5, bottom * rows - 0.5)
    cut = roi_align(scores, cells, grid)
    return softmax(cut[:, ::-1] if flipped else cut, -1)


def _difference(file: LabelFile, classes: Sequence[str]) -> str:
    theirs = file.description.classes
    if len(theirs) != len(classes):
        return f"it has {len(theirs):,}, the data has {len(classes):,}"
    own, other = next((a, b) for a, b in zip(classes, theirs, strict=True) if a != b)
    return f"it has {other!r} where the data has {own!r}"
