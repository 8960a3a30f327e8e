"""The images of a run: shapes, Imagenette or a folder, described by plain data that is saved with the run."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..schema import check_fields
from .crops import resized_for_centre_crop, shrink
from .folder import train_and_val
from .groups import COLOURS, Grouped, find_groups
from .imagenette import imagenette
from .loader import Dataset, InMemory
from .shapes import Shapes

MAX_IMAGES = 2e7  # images; ImageNet-21k has 14 million
NAMED = ("shapes", "imagenette", "imagenette-320", "imagenette-full")


@dataclass(frozen=True)
class Source:
    """Description of a dataset: shapes, imagenette (160 pixels), imagenette-320, imagenette-full, or a path."""

    data: str = "shapes"
    difficulty: str = "easy"  # of shapes
    train_images: int | None = None  # at most; None: all, or 6,000 shapes
    val_images: int | None = None  # at most; None: all, or 500 shapes
    val_fraction: float | None = 0.1  # held out of a folder without val/; None: nothing, see train_and_val
    keep_side: int | None = None  # keep images in memory: for training with this shorter side, for validation as seen
    classes: list[str] | None = None  # only these, by their folders or ImageNet's names; None: all
    groups: str | None = None  # coarser classes: a name or a file (see `groups`), or "colours" for coloured shapes

    def __post_init__(self) -> None:
        check_fields(self, {"train_images": (1, MAX_IMAGES), "val_images": (1, MAX_IMAGES), "keep_side": (1, 1e5)})
        if self.val_fraction is not None and not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction must be between 0 and 1, got {self.val_fraction}")

    @property
    def name(self) -> str:
        """Short name for the run's folder."""
        return self.data if self.data in NAMED else re.sub(r"[^\w.-]+", "-", Path(self.data).resolve().name) or "folder"

    def open(self, side: int, seed: int = 0, crop_ratio: float = 1.0) -> Images:
        """Open the datasets for a model that takes images of `side` pixels; shapes are drawn at that size."""
        if self.keep_side is not None and self.keep_side < side:
            raise ValueError(f"keep_side={self.keep_side} is smaller than the {side} pixels that the model takes")
        groups = None if self.groups in (None, COLOURS) else find_groups(str(self.groups))
        train, val, name, fingerprint = self._shapes(side, seed) if self.data == "shapes" else self._folder()
        if self.groups is not None:
            name += f", grouped by {self.groups}"
        if groups is not None:
            train, val, fingerprint = Grouped(train, groups), Grouped(val, groups), f"{fingerprint} {dict(groups)}"
        if self.data == "shapes":
            return Images(InMemory(train), InMemory(val), name, fingerprint)
        if self.keep_side is None:
            return Images(train, val, name, fingerprint)
        kept = InMemory(train, partial(shrink, side=self.keep_side))
        resized = InMemory(val, partial(resized_for_centre_crop, side=side, ratio=crop_ratio))
        return Images(kept, resized, name, fingerprint)

    def _shapes(self, side: int, seed: int) -> Images:
        if self.classes is not None:
            raise ValueError("classes are chosen from folders of images, not from shapes")
        counts, seeds = (self.train_images or 6000, self.val_images or 500), (seed, seed + 1_000_003)
        coloured = self.groups == COLOURS
        drawn = [Shapes(n, side, s, self.difficulty, coloured) for n, s in zip(counts, seeds, strict=True)]
        return Images(drawn[0], drawn[1], f"shapes ({self.difficulty})", str(asdict(self)))

    def _folder(self) -> Images:
        if self.groups == COLOURS:
            raise ValueError(f"groups {COLOURS} are for shapes, which are drawn in colours, not for {self.data}")
        root = Path(self.data)
        if self.data in NAMED:
            root = imagenette(self.data.partition("-")[2] or "160")
        train, val = train_and_val(root, self.val_fraction, self.classes)
        train, val = train.first(self.train_images), val.first(self.val_images)
        name = self.data if self.classes is None else f"{len(train.classes)} classes of {self.data}"
        return Images(train, val, name, f"{train.fingerprint()} {val.fingerprint()}")


class Images(NamedTuple):
    """Two datasets with the same classes, a display name, and a fingerprint that detects changes."""

    train: Dataset
    val: Dataset
    name: str
    fingerprint: str
