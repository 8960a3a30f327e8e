"""Where the images of a run come from: shapes, Imagenette, or a folder, as plain data that is saved with the run."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .crops import centre_crop, shrink
from .folder import train_and_val
from .imagenette import imagenette
from .loader import Dataset, InMemory
from .shapes import Shapes

NAMED = ("shapes", "imagenette", "imagenette-320", "imagenette-full")


@dataclass(frozen=True)
class Source:
    """data: shapes, imagenette (of 160 pixels), imagenette-320, imagenette-full, or the path of a folder."""

    data: str = "shapes"
    difficulty: str = "easy"  # of shapes
    train_images: int | None = None  # fewer than there are; shapes: 6,000
    val_images: int | None = None  # shapes: 500
    val_fraction: float | None = 0.1  # of a folder that has no val/; None: all of it
    keep_side: int | None = None  # read every image once, shrink it to this side for training, and keep it in memory

    def __post_init__(self) -> None:
        for name in ("train_images", "val_images", "keep_side"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} must be at least 1, got {value}")

    @property
    def name(self) -> str:
        """Short, for the folder of the run."""
        return self.data if self.data in NAMED else re.sub(r"[^\w.-]+", "-", Path(self.data).resolve().name) or "folder"

    def open(self, side: int, seed: int = 0, crop_ratio: float = 1.0) -> Images:
        """For a model that takes images of this side; shapes are drawn so large, others are what they are."""
        if self.keep_side is not None and self.keep_side < side:
            raise ValueError(f"keep_side={self.keep_side} is smaller than the {side} pixels that the model takes")
        if self.data == "shapes":
            counts = self.train_images or 6000, self.val_images or 500
            train = Shapes(counts[0], side, seed, self.difficulty)
            val = Shapes(counts[1], side, seed + 1_000_003, self.difficulty)
            return Images(InMemory(train), InMemory(val), f"shapes ({self.difficulty})", str(asdict(self)))
        root = Path(self.data)
        if self.data in NAMED:
            root = imagenette(self.data.partition("-")[2] or "160")
        folders = train_and_val(root, self.val_fraction)
        own, others = folders[0].first(self.train_images), folders[1].first(self.val_images)
        fingerprint = f"{own.fingerprint()} {others.fingerprint()}"
        if self.keep_side is None:
            return Images(own, others, self.data, fingerprint)
        kept = InMemory(own, partial(shrink, side=self.keep_side))
        if crop_ratio != 1:  # what is seen of an image is less than what would be kept
            return Images(kept, others, self.data, fingerprint)
        return Images(kept, InMemory(others, partial(centre_crop, side=side)), self.data, fingerprint)


class Images(NamedTuple):
    """What was opened: two datasets with the same classes, a name for people, and a print that tells changes."""

    train: Dataset
    val: Dataset
    name: str
    fingerprint: str
