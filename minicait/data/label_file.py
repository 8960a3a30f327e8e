"""Label maps in a file: what an annotator sees in every cell of every image of a dataset.

One safetensors file for all images, each covered whole by a grid of cells:

    logits   float16 (images, rows, columns, 5): the largest logits of a cell, largest first
    classes  uint16, the same shape: their classes. In float16, only whole numbers up to 2048 would be exact.
    images   uint8: path and file size of every image, by which its map is found, with a zero byte between two of them

A class that is not stored has the logit 0. So the stored ones are given relative to the rest: less the log of the mean
of exp(logit) over the classes that are not stored. Then the softmax over all classes is the annotator's own for the
stored ones, and the others share what is left.

An image that could not be read has logits that are NaN. Metadata have the class names, the annotator, and a hash of
everything. Maps are read from the file when they are needed, some kilobytes for each image, and never kept in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..files.atomic import check_destination
from ..files.tensorfile import DTYPES, TensorFile, array_blocks, open_tensors, write_tensors
from ..schema import check_fields, from_json
from ..text import shortened
from .folder import ImageFolder
from .groups import unwrapped
from .shapes import Shapes

TOP = 5  # classes that a cell has
MAX_CLASSES = 1 << 16  # that uint16 can tell apart
MAX_CELLS = 1 << 10  # on a side
MAX_NAME = 500  # characters of a class or an annotator
KEY = "minicait_token_labels"  # of the description, in the metadata
_KINDS = {"logits": ("F16", 4), "classes": ("U16", 4), "images": ("U8", 1)}


@dataclass(frozen=True)
class Description:
    """The classes of label maps, and the annotator that made them."""

    classes: list[str]  # of the data
    annotator: str  # name of its weights
    annotator_hash: str  # sha256 of its weights
    img_size: int  # side of the images that the annotator took
    window: float | None  # share of the image's sides that it saw at a time; None: all, and it classified every patch
    covers: str = "image"  # maps cover whole images

    def __post_init__(self) -> None:
        check_fields(self, {"img_size": (1, 1e5), "window": (0, 1)})
        if not 1 <= len(self.classes) <= MAX_CLASSES:
            raise ValueError(f"there must be from 1 to {MAX_CLASSES:,} classes, not {len(self.classes):,}")
        if max(map(len, [*self.classes, self.annotator, self.annotator_hash])) > MAX_NAME:
            raise ValueError(f"a name has more than {MAX_NAME} characters")
        if self.covers != "image":
            raise ValueError(f"its maps cover {shortened(self.covers)!r}, expected 'image'")

    @property
    def top(self) -> int:
        """Number of classes that a cell has."""
        return min(TOP, len(self.classes))


@dataclass(frozen=True)
class LabelFile:
    """An open file of label maps, checked against its hash."""

    file: TensorFile
    description: Description
    images: list[bytes]
    hash: str

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of a map."""
        return self.file.shapes["logits"][1], self.file.shapes["logits"][2]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Logits and classes (rows, columns, top) of an image."""
        logits, classes = (self.file.read_rows(name, number, number + 1)[0] for name in ("logits", "classes"))
        return logits, classes

    def without_map(self) -> int:
        """Number of images that could not be read."""
        blocks = self.file.blocks("logits")
        return sum(int(np.isnan(block).any(axis=(1, 2, 3)).sum()) for block in blocks)

    def numbers(self, images: Sequence[bytes]) -> np.ndarray:
        """The number of each of these images here; ValueError if one is missing."""
        if images == self.images:
            return np.arange(len(images))
        known = {image: number for number, image in enumerate(self.images)}
        missing = [image for image in images if image not in known]
        if missing:
            more = f", nor of {len(missing) - 1:,} others of {len(images):,}" if len(missing) > 1 else ""
            raise ValueError(f"{self.path.name} is for other images: it has no map of {os.fsdecode(missing[0])}{more}")
        return np.array([known[image] for image in images])


def open_label_file(path: str | Path) -> LabelFile:
    """Open a file of label maps, and check all of it: its hash, and that its classes exist."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file of label maps {path}")
    file = open_tensors(path)
    if KEY not in file.metadata:
        raise ValueError(f"{path.name} holds no label maps, as `minicait label-tokens` writes them")
    try:
        description = from_json(Description, json.loads(file.metadata[KEY]))
        _check_shapes(file, description)
        names, count = file.read("images").tobytes(), file.shapes["logits"][0]
        if (named := names.count(b"\0") + 1) != count:
            raise ValueError(f"it has {named:,} names of images for {count:,} maps")
        found = _hash(file.metadata[KEY], {name: file.blocks(name) for name in _KINDS}, file.shapes)
        if found != file.metadata.get("sha256"):
            raise ValueError("its content does not fit its hash")
        if any((block >= len(description.classes)).any() for block in file.blocks("classes")):
            raise ValueError(f"it has classes beyond its {len(description.classes):,}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: {shortened(str(error), 200)}") from error
    return LabelFile(file, description, names.split(b"\0"), found)


def _check_shapes(file: TensorFile, description: Description) -> None:
    kinds = {name: (dtype, len(shape)) for name, (dtype, shape, _) in file.entries.items()}
    if kinds != _KINDS or file.shapes["logits"] != file.shapes["classes"]:
        raise ValueError("its tensors are not logits, classes and images of maps")
    count, rows, columns, top = file.shapes["logits"]
    if not (count and 1 <= rows <= MAX_CELLS and 1 <= columns <= MAX_CELLS and top == description.top):
        raise ValueError(f"maps of shape {(count, rows, columns, top)} do not fit {len(description.classes)} classes")


def write_label_file(
    path: Path, description: Description, images: Sequence[bytes], logits: np.ndarray, classes: np.ndarray
) -> None:
    """Write a file of label maps atomically. The arrays may be memory maps."""
    check_destination(path)
    names = np.frombuffer(b"\0".join(images), np.uint8)
    tensors = {"logits": logits, "classes": classes, "images": names}
    text, shapes = json.dumps(asdict(description)), {name: array.shape for name, array in tensors.items()}
    digest = _hash(text, {name: array_blocks(array) for name, array in tensors.items()}, shapes)
    write_tensors(path, tensors, {KEY: text, "sha256": digest})


def _hash(text: str, tensors: Mapping[str, Iterator[np.ndarray]], shapes: Mapping[str, tuple[int, ...]]) -> str:
    total = hashlib.sha256(text.encode())
    for name, (dtype, _) in _KINDS.items():
        total.update(f"{name} {dtype} {shapes[name]}".encode())
        for block in tensors[name]:
            total.update(np.ascontiguousarray(block, DTYPES[dtype]).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def image_names(dataset: Any) -> list[bytes]:
    """Path, relative to the dataset's folder, and file size of every image; shapes have a number."""
    dataset = unwrapped(dataset)
    if isinstance(dataset, ImageFolder):
        paths = (path for path, _ in dataset.samples)
        return [os.fsencode(f"{p.relative_to(dataset.root).as_posix()} ({p.stat().st_size} bytes)") for p in paths]
    if isinstance(dataset, Shapes):
        kind = f"{dataset.difficulty}{'-coloured' if dataset.coloured else ''}"
        return [f"shapes/{kind}/{dataset.size}/{dataset.seed}/{i}".encode() for i in range(len(dataset))]
    raise ValueError(f"images of a {type(dataset).__name__} have no names by which their label maps can be found")
