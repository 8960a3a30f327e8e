"""Image folders: one folder per class, either below train/ and val/, or all in one folder that is split here.

photos/train/cat/*.jpg   photos/val/cat/*.jpg        or        photos/cat/*.jpg
photos/train/dog/*.jpg   photos/val/dog/*.jpg                  photos/dog/*.jpg

Folders inside a class do not matter for training; they are fine labels (see `groups`): photos/dog/poodle/*.jpg.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from ..text import shortened
from .imagenet import imagenet_names
from .picture import Picture

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
VALIDATION = ("val", "valid", "validation", "test")


class ImageFolder:
    """A dataset of image files, sorted by class and path: `folder[i]` is (Picture, label)."""

    def __init__(self, root: Path, samples: Sequence[tuple[Path, int]], classes: Sequence[str]) -> None:
        self.root, self.samples = root, list(samples)
        self.folders = list(classes)
        self.classes = [imagenet_names().get(name, name) for name in classes]  # WordNet IDs become names

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Picture, int]:
        path, label = self.samples[index]
        return Picture(path), label

    def label(self, index: int) -> int:
        return self.samples[index][1]

    @cached_property
    def _fine(self) -> list[str]:
        """For every image, its class and the folders below it."""
        folders = [path.relative_to(self.root).parts[1:-1] for path, _ in self.samples]
        return ["/".join([self.classes[label], *own]) for own, (_, label) in zip(folders, self.samples, strict=True)]

    @cached_property
    def fine_classes(self) -> list[str]:
        return sorted(set(self._fine))

    @cached_property
    def _fine_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.fine_classes)}

    def fine(self, index: int) -> int:
        return self._fine_numbers[self._fine[index]]

    def first(self, count: int | None) -> ImageFolder:
        """Return a class-balanced subset of `count` images, chosen by a hash of their paths; None means all."""
        if count is None or count >= len(self):
            return self
        turns: Counter[int] = Counter()
        ordered = []
        for path, label in sorted(self.samples, key=lambda sample: _sort_key(self.root, sample[0])):
            ordered.append((turns[label], path, label))
            turns[label] += 1
        chosen = sorted(ordered, key=lambda sample: sample[0])[:count]
        return ImageFolder(self.root, sorted((path, label) for _, path, label in chosen), self.folders)

    def fingerprint(self) -> str:
        """Return a hash of the class names, paths and file sizes."""
        names = [f"{path.relative_to(self.root).as_posix()} {path.stat().st_size}" for path, _ in self.samples]
        return hashlib.sha256(os.fsencode("\n".join([*self.folders, *names]))).hexdigest()


def train_and_val(
    root: str | Path, val_fraction: float | None = 0.1, classes: Sequence[str] | None = None
) -> tuple[ImageFolder, ImageFolder]:
    """Return the training and the validation images of a folder, or those of some of its classes.

    Without a validation folder, `val_fraction` of every class is held out. If it is None, nothing is split: all images
    are returned for both.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    if (root / "train").is_dir() and any(p.is_dir() for p in (root / "train").iterdir()):  # else it is a class
        train = _read(root / "train", _classes(root / "train", chosen=classes))
        val = next((root / name for name in VALIDATION if (root / name).is_dir()), None)
        if val is None:
            return _split(train, val_fraction)
        unknown = sorted(set(_classes(val, minimum=1)) - set(train.folders))
        if unknown and classes is None:
            raise ValueError(f"{val} has classes that are missing from {root / 'train'}: {', '.join(unknown[:5])}")
        return train, _read(val, train.folders, may_be_empty=True)
    return _split(_read(root, _classes(root, 2 if val_fraction is not None else 1, classes)), val_fraction)


def _split(folder: ImageFolder, fraction: float | None) -> tuple[ImageFolder, ImageFolder]:
    """Split every class by a hash of the file names, so that adding an image moves few others."""
    if fraction is None:
        return folder, folder
    if not 0 < fraction < 1:
        raise ValueError(f"val_fraction must be between 0 and 1, got {fraction}")
    train, val = [], []
    for label, name in enumerate(folder.folders):
        own = sorted((s for s in folder.samples if s[1] == label), key=lambda s: _sort_key(folder.root, s[0]))
        if len(own) < 2:
            raise ValueError(f"{folder.root / name} has one image; splitting a class needs at least two")
        kept = min(max(1, round(fraction * len(own))), len(own) - 1)
        val += own[:kept]
        train += own[kept:]
    parts = [ImageFolder(folder.root, sorted(part), folder.folders) for part in (train, val)]
    return parts[0], parts[1]


def _sort_key(root: Path, path: Path) -> bytes:
    """Hash of a path: a pseudo-random order that is the same on every machine."""
    return hashlib.sha256(os.fsencode(path.relative_to(root).as_posix())).digest()


def _classes(root: Path, minimum: int = 2, chosen: Sequence[str] | None = None) -> list[str]:
    names = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if chosen is not None:
        names = sorted({_folder_of(name, names, root) for name in chosen})
        if len(names) < minimum:
            only = f"only {imagenet_names().get(names[0], names[0])}" if names else "none"
            raise ValueError(f"classes must name at least {minimum} classes, got {only}")
    if len(names) < minimum:
        found = f"only {names[0]}" if names else "none"
        raise ValueError(f"{root} must contain a folder of images for each class, at least {minimum}, but has {found}")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:  # the weights file could not be written
            raise ValueError(f"the name of the class {root / name} is not valid UTF-8; rename the folder") from error
    return names


def _folder_of(name: str, folders: Sequence[str], root: Path) -> str:
    """The folder of a class, which is given by its folder or by its name in ImageNet."""
    if name in folders:
        return name
    names = [imagenet_names().get(folder, folder) for folder in folders]
    known = {own.lower(): folder for own, folder in zip(names, folders, strict=True)}
    if name.lower() in known:
        return known[name.lower()]
    spelled = {word.lower(): word for word in (*names, *folders)}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    if not near and (Path(name).suffix or "/" in name):  # meant as a list in a file
        raise ValueError(f"there is no file {shortened(name)}, and {root} has no such class")
    hint = f"did you mean {spelled[near[0]]}?" if near else f"it has {', '.join(names[:5])}{', ...' * (len(names) > 5)}"
    raise ValueError(f"{root} has no class {shortened(name)}; {hint}")


def images_in(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by path, without hidden files and folders."""
    found = []
    for root, folders, files in os.walk(folder, onerror=_fail):  # does not follow links, which may form loops
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(root, name) for name in files if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in EXTENSIONS and path.is_file()]
    return sorted(found)


def _fail(error: OSError) -> None:
    raise error


def _read(root: Path, classes: Sequence[str], may_be_empty: bool = False) -> ImageFolder:
    samples = []
    for label, name in enumerate(classes):
        images = images_in(root / name) if (root / name).is_dir() else []
        if not images and not may_be_empty:
            raise ValueError(f"{root / name} has no images ({', '.join(EXTENSIONS)})")
        samples += [(path, label) for path in images]
    if not samples:
        raise ValueError(f"{root} has no images ({', '.join(EXTENSIONS)})")
    return ImageFolder(root, samples, classes)
