"""Annotators: trained models that say what is in every cell of an image.

A model that classifies patches, such as LV-ViT, has logits of every patch. A head that has only ever seen a class token
(CaiT, DeiT) cannot be put on patches: nothing has taught patches to look like a class token. So any other model looks
at windows, a part of the image at a time, and its logits of a window are those of the cell at the window's centre.

Either way a map covers the whole image. A photograph is squashed to a square, and not cut to one, so that a crop is the
same fractions of the map as of the image. Random crops, which are squashed to squares too, have sides of up to 4:3: so
far, models know the distortion from training, and beyond they do not. A square with borders would distort nothing, but
show every object smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from autograd.backend import Array, to_device

from ..data.device_loader import on_device
from ..data.label_file import Description, LabelFile, image_names, open_label_file
from ..data.label_part import LabelPart
from ..data.loader import Dataset, Loader
from ..data.picture import Picture
from ..data.pixels import Pixels
from ..data.transforms import View, Viewing
from ..files.atomic import check_destination
from ..files.part import Part
from .evaluate import NOT_FINITE, in_pieces
from .expert import Expert

CELLS = 7  # rows and columns of windows, by default
MAX_CELLS = 32  # rows and columns of windows, all of which are in memory
WINDOW = 0.5  # side of a window, by default, as a share of the image's
BATCH = 32  # images or windows that are computed together, and more if an image has more windows


class Annotator(Expert):
    """A trained model that makes label maps for some classes: `annotator(looks)` returns logits (B, rows, columns, C).

    img_size  side of the images that the model takes, by default as in training; a model that classifies patches has
              more of them at a larger size
    cells     rows and columns of windows, for any other model
    window    side of a window, as a share of the image's
    """

    def __init__(
        self,
        weights: str,
        classes: Sequence[str],
        img_size: int | None = None,
        cells: int | None = None,
        window: float | None = None,
        device: str = "cpu",
        threads: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        refusal = f"{weights} cannot label these images"
        super().__init__(weights, classes, refusal, img_size, device, threads, micro_batch)
        self.side = self.model.img_size[0]
        if self.model.classifies_patches:
            if cells is not None or window is not None:
                raise ValueError("cells and window are for models without a class for every patch; choose img_size")
            self.cells, self.edges = self.model.grid, [(0.0, 1.0)]
        else:
            cells, window = CELLS if cells is None else cells, WINDOW if window is None else window
            self.cells = cells, cells
            self.edges, self.of_cell = _windows(cells, window)
        self.description = Description(list(classes), Path(weights).name, self.hash, self.side, window)

    @property
    def looks(self) -> int:
        """Forward passes for an image."""
        return len(self.edges) ** 2

    @property
    def batch(self) -> int:
        """Images that are computed together."""
        return max(1, BATCH // self.looks)

    @property
    def transform(self) -> Viewing:
        """Makes input of the model from an image: the whole image, or all windows of it below each other."""
        return Viewing(self._look, self.info.mean, self.info.std)

    def _look(self, picture: Picture, _: Any) -> View:
        share = self.edges[0][1] - self.edges[0][0]
        image = picture.decode(shrink=share * min(picture.size) / self.side)
        down, across = ([_pixels(edges, n) for edges in self.edges] for n in (image.height, image.width))
        boxes = [(left, top, right, bottom) for top, bottom in down for left, right in across]
        size = (self.side, self.side)
        looks = [np.asarray(image.crop(box).resize(size, Image.Resampling.BICUBIC)) for box in boxes]
        return View(np.concatenate(looks))

    def __call__(self, looks: Array) -> np.ndarray:
        """Logits (B, rows, columns, C), from what `transform` made of the images, (B, 3, looks * side, side)."""
        apart = looks.reshape(len(looks), 3, self.looks, self.side, self.side).swapaxes(1, 2)
        flat = apart.reshape(-1, *apart.shape[2:])
        found = np.concatenate(list(in_pieces(self.model, flat, self.threads, self.micro_batch, self._logits)))
        if not np.isfinite(found).all():
            raise ValueError(NOT_FINITE)
        if self.model.classifies_patches:
            return found.reshape(len(looks), *self.cells, -1)
        windows = found.reshape(len(looks), len(self.edges), len(self.edges), -1)
        return windows[:, self.of_cell][:, :, self.of_cell]

    def _logits(self, images: Any) -> np.ndarray:
        outputs = self.model.outputs(images)
        logits = outputs.logits if outputs.tokens is None else outputs.tokens
        return to_device(logits.data, "cpu")[..., self.outputs]


def _windows(cells: int, window: float) -> tuple[list[tuple[float, float]], np.ndarray]:
    """Start and end of the windows along a side, as fractions of it, and the number of the window of every cell.

    A window has its cell in its centre, unless it would reach beyond the image; then it is moved inside, and cells at
    the border share it. So a window shows nothing but the image.
    """
    if not 1 <= cells <= MAX_CELLS:
        raise ValueError(f"cells must be from 1 to {MAX_CELLS}, got {cells}")
    if not 0.01 <= window <= 1:
        raise ValueError(f"window must be from 0.01 to 1, got {window}")
    centres = np.clip((np.arange(cells) + 0.5) / cells, window / 2, 1 - window / 2).round(9)
    different, of_cell = np.unique(centres, return_inverse=True)
    return [(float(c) - window / 2, float(c) + window / 2) for c in different], of_cell


def _pixels(edges: tuple[float, float], length: int) -> tuple[int, int]:
    """Start and end in whole pixels, of which there is at least one."""
    start = min(round(edges[0] * length), length - 1)
    return start, max(round(edges[1] * length), start + 1)


def strongest(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest logits (..., count) of every cell and their classes, as a file of label maps has them.

    They are relative to the others: less the log of the mean of exp(logit) over those that are not among them.
    """
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranked = np.take_along_axis(logits, order, -1).astype(np.float64)
    first, rest = ranked[..., :count], ranked[..., count:]
    if rest.shape[-1]:
        largest = rest[..., :1]
        first = first - (largest + np.log(np.exp(rest - largest).mean(axis=-1, keepdims=True)))
    with np.errstate(over="ignore"):
        halves = first.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ValueError(NOT_FINITE)
    return halves, order[..., :count].astype(np.uint16)


def annotate(
    images: Dataset,
    annotator: Annotator,
    path: Path,
    skip_bad: bool = False,
    after_batch: Callable[[int], None] | None = None,
) -> LabelFile:
    """Write the label maps of all images, and return them.

    Maps so far are in a file beside `path`, from which the same call continues after it was stopped or killed. A file
    that is complete stays as it is. `after_batch` is called with the number of images that are done, and may raise to
    stop. With `skip_bad`, images that cannot be read have no map.
    """
    check_destination(path)
    names = image_names(images)
    if path.exists():
        return _complete(path, annotator, names)
    part, size = LabelPart(path, annotator.description, names, annotator.cells), annotator.batch
    shape, report = (*annotator.cells, annotator.description.top), after_batch or (lambda done: None)

    def append(count: int, known: Any = slice(0), maps: Any = (np.nan, 0)) -> int:
        """Add `count` maps, of which only some are known: the other images cannot be read."""
        logits, classes = np.full((count, *shape), np.nan, np.float16), np.zeros((count, *shape), np.uint16)
        logits[known], classes[known] = maps
        part.append(logits, classes)
        return count

    try:
        report(done := part.keep(size))  # whole batches, for they are computed together
        loader = Loader(
            images, size, transform=annotator.transform, threads=annotator.threads, skip_bad=skip_bad, numbered=True
        )
        device = annotator.model.device
        with on_device(loader, device) as there, closing(there.epoch(0, -(-done // size))) as batches:
            for batch in batches:
                looks = batch.images.normalised() if isinstance(batch.images, Pixels) else batch.images
                samples = batch.targets["samples"]
                end = min((samples[-1] // size + 1) * size, len(images))
                done += append(end - done, samples - done, strongest(annotator(looks), shape[-1]))
                report(done)
        append(len(images) - done)
        part.finish()
    finally:
        part.close()
    return open_label_file(path)


def _complete(path: Path, annotator: Annotator, names: list[bytes]) -> LabelFile:
    """The label maps in a file that is there already, if they are those that would be made."""
    found = open_label_file(path)
    if (found.description, found.cells, found.images) != (annotator.description, annotator.cells, names):
        raise ValueError(f"{path} has other label maps: remove it, or choose another name")
    Part(path).discard()  # of a process that was killed at its end
    return found
