"""The groups of maps in a report: each is a section of the page, a picture, and an entry of the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .charts import layer_label
from .colours import CATEGORIES, OTHER
from .inside import Inside


class Maps(NamedTuple):
    """Maps over the patches: a row for each layer, a column for each head or class."""

    name: str  # of its picture and its numbers
    text: str  # name of its text on the page
    title: str  # of its section
    what: str  # one of its maps shows
    values: np.ndarray  # (layers, columns, rows of patches, columns of patches)
    layers: list[str]  # a single one may have no name
    columns: list[str]
    equation: str  # id of its explanation on the page
    to_itself: np.ndarray | None = None  # (layers, heads): attention of a token to itself
    has_mean: bool = False  # columns are heads, and their mean is one more
    has_slider: bool = False  # selects a layer, the last one at first; else all are shown
    signed: bool = False
    share: float = 1.0  # of the patches that the scale of a map covers


def all_maps(inside: Inside) -> Iterator[Maps]:
    """Yield the groups of maps that the model has."""
    classes = [f"{inside.classes[i]}, {inside.probabilities[i]:.1%}" for i in inside.best[: len(inside.class_maps)]]
    if len(inside.patch_classes):
        about = "class-maps", "patch-classes", "What each patch shows", "Probability"
        yield Maps(*about, inside.class_maps[None], [""], classes, "eq-patch")
    elif len(inside.class_maps):
        about = "class-maps", "class-tokens", "Where the class tokens look", "Attention"
        yield Maps(*about, inside.class_maps[None], [""], classes, "eq-class-tokens")
    layers = [layer_label(name) for name in inside.class_layers]
    heads = [f"Head {h + 1}" for h in range(inside.class_attention.shape[1])]
    in_blocks: Any = {"has_mean": len(heads) > 1, "has_slider": len(layers) > 1, "share": inside.share}
    if inside.own_stage and inside.class_attention.shape[:2] == (1, 1):
        about = "class-attention", "class-pooling", "Where the class token looks", "Class attention"
        yield Maps(*about, inside.class_attention, [""], ["Class attention"], "eq-8", inside.to_itself)
    elif inside.own_stage and layers:
        about = "class-attention", "class-attention", "Where the class token looks", "Class attention"
        yield Maps(*about, inside.class_attention, layers, heads, "eq-8", inside.to_itself, has_mean=True)
    elif layers:
        about = "class-attention", "class-token", "Where the class token looks", "Class token"
        yield Maps(*about, inside.class_attention, layers, heads, "eq-attention", inside.to_itself, **in_blocks)
    if len(inside.distillation):
        about = "distillation", "distillation-token", "Where the distillation token looks", "Distillation token"
        yield Maps(*about, inside.distillation, layers, heads, "eq-attention", **in_blocks)
    if len(inside.class_weights):
        about = "class-weights", "class-weights", "What the class token gathers", "Class weights"
        layers = [f"C{i + 1}" for i in range(len(inside.class_weights))]
        yield Maps(*about, inside.class_weights[:, None], layers, ["Weights"], "eq-class-mlp", signed=True)


class PatchLabels(NamedTuple):
    """The most probable class of every patch (N,), as an index of `names`, which the most frequent class leads."""

    names: list[str]
    which: np.ndarray
    probability: np.ndarray
    patches: list[int]  # that have this class, by name

    @property
    def colours(self) -> list[tuple[int, int, int]]:
        """A colour for each name; rare classes share one."""
        return [CATEGORIES[i] if i < len(CATEGORIES) else OTHER for i in range(len(self.names))]

    @property
    def legend(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Text and colour of each entry of the legend."""
        few = len(CATEGORIES)
        known = zip(self.names, self.patches, CATEGORIES, strict=False)
        entries = [(f"{name}: {count} patch{'es' * (count > 1)}", colour) for name, count, colour in known]
        rest = sum(self.patches[few:])
        return [*entries, (f"{len(self.names) - few} other classes: {rest} patches", OTHER)] if rest else entries


def patch_labels(inside: Inside) -> PatchLabels:
    best = inside.patch_classes.argmax(axis=-1)
    classes, index, count = np.unique(best, return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")
    names = [inside.classes[i] for i in classes[order]]
    return PatchLabels(names, np.argsort(order)[index], inside.patch_classes.max(axis=-1), count[order].tolist())
