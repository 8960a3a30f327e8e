"""Coarse and fine labels: a model trains on groups of classes, and is asked for the classes themselves.

A dataset has a fine label for every image: `fine(index)`, with names in `fine_classes`. For a Grouped dataset it is the
class inside the group, for a folder of folders the path below the class, for coloured shapes the form and the colour;
where there is nothing finer, it is the class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..text import shortened

Groups = Mapping[str, Sequence[str]]  # classes by the name of their group

COLOURS = "colours"  # shapes by form, and inside it by colour: they are drawn so, and not grouped
GROUPS: dict[str, Groups] = {
    "cifar10": {
        "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
        "vehicle": ("airplane", "automobile", "ship", "truck"),
    },
    "imagenette": {
        "animal": ("tench", "English springer"),
        "object": ("cassette player", "chain saw", "French horn", "golf ball"),
        "outdoors": ("church", "garbage truck", "gas pump", "parachute"),
    },
    "shapes": {
        "round": ("circle", "ring", "heart", "crescent"),
        "angular": ("triangle", "square", "bar", "star", "plus", "arrow"),
    },
}
MAX_FILE = 1_000_000  # bytes of a file of groups; a thousand classes need some 20,000


def find_groups(name: str) -> Groups:
    """Groups by their name in GROUPS, or from a JSON file {"animal": ["cat", "dog"], ...}."""
    if name in GROUPS:
        return GROUPS[name]
    path = Path(name)
    if not path.is_file():
        known = ", ".join([*GROUPS, COLOURS])
        raise ValueError(f"there are no groups {name}: expected {known}, or a JSON file with the classes of each group")
    if path.stat().st_size > MAX_FILE:
        raise ValueError(f"{path} is too large for groups of classes: it has more than {MAX_FILE:,} bytes")
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file ({shortened(str(error), 100)})") from error
    lists = list(groups.values()) if isinstance(groups, dict) else []
    if not lists or not all(isinstance(classes, list) and classes for classes in lists):
        raise ValueError(f'{path} must hold lists of classes by the name of their group: {{"animal": ["cat", "dog"]}}')
    if not all(isinstance(name, str) for classes in groups.values() for name in classes):
        raise ValueError(f"{path} holds a class that is not a string")
    return groups


class Grouped:
    """A dataset in which groups of classes are the classes. It needs `label(index)`, the class without the image."""

    def __init__(self, dataset: Any, groups: Groups) -> None:
        self.dataset = dataset
        self.classes, self.fine_classes = list(groups), list(dataset.classes)
        group_of: dict[str, int] = {}
        for number, names in enumerate(groups.values()):
            for name in names:
                if name not in self.fine_classes:
                    own = shortened(", ".join(self.fine_classes), 200)
                    raise ValueError(f"groups: {shortened(name)} is not a class of these images, which have {own}")
                if name in group_of:
                    raise ValueError(f"groups: the class {name} is there twice")
                group_of[name] = number
        if without := [name for name in self.fine_classes if name not in group_of]:
            raise ValueError(f"groups: the class {without[0]} is in none of the groups {', '.join(groups)}")
        self.group_of = [group_of[name] for name in self.fine_classes]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.dataset[index]
        return image, self.group_of[label]

    def label(self, index: int) -> int:
        return self.group_of[self.fine(index)]

    def fine(self, index: int) -> int:
        return self.dataset.label(index)


def unwrapped(dataset: Any) -> Any:
    """The dataset inside those that only keep or relabel its images."""
    while hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


def fine_labels(dataset: Any) -> tuple[list[str], np.ndarray]:
    """Names of the fine classes, and the fine label of every image."""
    labelled = _with_fine_labels(dataset)
    label = labelled.fine if hasattr(labelled, "fine") else lambda i: labelled[i][1]
    return fine_classes(dataset), np.array([label(i) for i in range(len(labelled))], int)


def fine_classes(dataset: Any) -> list[str]:
    """Names of the fine classes: those of the dataset, if it has nothing finer."""
    labelled = _with_fine_labels(dataset)
    return list(labelled.fine_classes if hasattr(labelled, "fine") else labelled.classes)


def _with_fine_labels(dataset: Any) -> Any:
    while not hasattr(dataset, "fine") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset
