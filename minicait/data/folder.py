"""Folders of images: one folder for each class, in train/ and val/, or all in one place and split here.

photos/train/cat/*.jpg   photos/val/cat/*.jpg        or        photos/cat/*.jpg
photos/train/dog/*.jpg   photos/val/dog/*.jpg                  photos/dog/*.jpg
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .imagenet import imagenet_names
from .picture import Picture

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
VALIDATION = ("val", "valid", "validation", "test")


class ImageFolder:
    """A dataset: `folder[i]` is (Picture, label), the pictures in the order of their names."""

    def __init__(self, root: Path, samples: Sequence[tuple[Path, int]], classes: Sequence[str]) -> None:
        self.root, self.samples = root, list(samples)
        self.folders = list(classes)
        self.classes = [imagenet_names().get(name, name) for name in classes]  # names for people, where they are known

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Picture, int]:
        path, label = self.samples[index]
        return Picture(path), label

    def first(self, count: int | None) -> ImageFolder:
        """As many images, from the classes in turn, in an order that the names of the files decide."""
        if count is None or count >= len(self):
            return self
        turns: Counter[int] = Counter()
        ordered = []
        for path, label in sorted(self.samples, key=lambda sample: _rank(self.root, sample[0])):
            ordered.append((turns[label], path, label))
            turns[label] += 1
        chosen = sorted(ordered, key=lambda sample: sample[0])[:count]
        return ImageFolder(self.root, sorted((path, label) for _, path, label in chosen), self.folders)

    def fingerprint(self) -> str:
        """Changes when an image comes, goes, or changes its size in bytes."""
        names = [f"{path.relative_to(self.root).as_posix()} {path.stat().st_size}" for path, _ in self.samples]
        return hashlib.sha256(os.fsencode("\n".join([*self.folders, *names]))).hexdigest()


def train_and_val(root: str | Path, val_fraction: float | None = 0.1) -> tuple[ImageFolder, ImageFolder]:
    """The two halves of a folder. Without a train/ in it, that part of every class is kept for validation.

    With a part of None, nothing is split: all of such a folder is for validation (and would be for training).
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    if (root / "train").is_dir() and any(p.is_dir() for p in (root / "train").iterdir()):  # else it is a class
        train = _read(root / "train", _classes(root / "train"))
        places = [root / name for name in VALIDATION if (root / name).is_dir()]
        if places:
            unknown = sorted(set(_classes(places[0], least=1)) - set(train.folders))
            if unknown:
                raise ValueError(f"{places[0]} has classes that {root / 'train'} has not: {', '.join(unknown[:5])}")
            return train, _read(places[0], train.folders, may_be_empty=True)
        return _split(train, val_fraction)
    return _split(_read(root, _classes(root, least=2 if val_fraction is not None else 1)), val_fraction)


def _split(folder: ImageFolder, fraction: float | None) -> tuple[ImageFolder, ImageFolder]:
    """By the names of the files, so a new image changes the place of few others."""
    if fraction is None:
        return folder, folder
    if not 0 < fraction < 1:
        raise ValueError(f"val_fraction must be between 0 and 1, got {fraction}")
    train, val = [], []
    for label, name in enumerate(folder.folders):
        own = sorted((s for s in folder.samples if s[1] == label), key=lambda s: _rank(folder.root, s[0]))
        if len(own) < 2:
            raise ValueError(f"{folder.root / name} has one image; to split a class, it needs at least two")
        kept = min(max(1, round(fraction * len(own))), len(own) - 1)
        val += own[:kept]
        train += own[kept:]
    parts = [ImageFolder(folder.root, sorted(part), folder.folders) for part in (train, val)]
    return parts[0], parts[1]


def _rank(root: Path, path: Path) -> bytes:
    """As good as random, and the same on every machine."""
    return hashlib.sha256(os.fsencode(path.relative_to(root).as_posix())).digest()


def _classes(root: Path, least: int = 2) -> list[str]:
    names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(names) < least:
        found = f"only {names[0]}" if names else "none"
        many = "at least two classes" if least > 1 else "its classes"
        raise ValueError(f"{root} must have a folder of images for each of {many}, and has {found}")
    return names


def images_in(folder: Path) -> list[Path]:
    """All image files below a folder that are not hidden, nor in a hidden folder, by name."""
    found = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in ENDINGS and not hidden and path.is_file():
            found.append(path)
    return found


def _read(root: Path, classes: Sequence[str], may_be_empty: bool = False) -> ImageFolder:
    samples = []
    for label, name in enumerate(classes):
        images = images_in(root / name) if (root / name).is_dir() else []
        if not images and not may_be_empty:
            raise ValueError(f"{root / name} has no images ({', '.join(ENDINGS)})")
        samples += [(path, label) for path in images]
    if not samples:
        raise ValueError(f"{root} has no images ({', '.join(ENDINGS)})")
    return ImageFolder(root, samples, classes)
