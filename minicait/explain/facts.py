"""Facts in a report beyond the forward pass: the verdict on the guess, the weights, and attention on the object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..data.imagenet import imagenet_classes, imagenet_names
from ..train.evaluate import share_inside
from .inside import Inside


class Facts(NamedTuple):
    """Facts about an image and a model, as far as they are known."""

    label: int | None = None  # true class
    weights: str | None = None  # their file and origin
    mask: np.ndarray | None = None  # (H, W): the pixels of the object


def find_class(name: str, classes: Sequence[str]) -> int | None:
    """Index of a class by its name, in any case, or by its WordNet ID if it is one of ImageNet's; None: not found."""
    if name in imagenet_names() and list(classes) == list(imagenet_classes()):
        return list(imagenet_names()).index(name)  # exact even where two classes share a name
    wanted = imagenet_names().get(name, name)
    if wanted in classes:
        return list(classes).index(wanted)
    lower = [each.lower() for each in classes]
    return lower.index(wanted.lower()) if lower.count(wanted.lower()) == 1 else None


def verdict(inside: Inside, facts: Facts) -> tuple[bool, str] | None:
    """True if the most probable class is the true one, and a sentence on that; None if the true class is unknown."""
    if facts.label is None:
        return None
    if inside.best[0] == facts.label:
        return True, f"The true class is {inside.classes[facts.label]}."
    probability = f"with a probability of {inside.probabilities[facts.label]:.1%}"
    return False, f"The true class is {inside.classes[facts.label]}, {probability}."


def attention_on_object(inside: Inside, facts: Facts) -> float | None:
    """Share of the attention on the object; None if the model has no map, or the object is unknown."""
    if facts.mask is None or inside.first_map is None:
        return None
    return float(share_inside(inside.first_map.reshape(1, -1), facts.mask[None], inside.grid)[0])


def sentences(inside: Inside, facts: Facts) -> Iterator[str]:
    """Yield sentences on the weights and the object."""
    if facts.weights is not None:
        yield f"Weights: {facts.weights}."
    share = attention_on_object(inside, facts)
    if share is not None and facts.mask is not None:
        covered = f"which covers {facts.mask.mean():.1%} of the image"
        yield f"{share:.1%} of the model's attention is on the object, {covered}."


def as_numbers(inside: Inside, facts: Facts) -> dict[str, Any]:
    """The facts that are known, by name."""
    judged, share = verdict(inside, facts), attention_on_object(inside, facts)
    found: dict[str, Any] = {} if facts.weights is None else {"weights": facts.weights}
    if judged is not None and facts.label is not None:
        found |= {"true_class": inside.classes[facts.label], "correct": judged[0]}
    return found if share is None else {**found, "attention_on_object": share}
