"""Plan: all that decides the result of a run, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..data.source import Source
from ..files.pretrained import load_model, open_pretrained
from ..models import Model, create_model, find_model
from ..train.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """Saved as args.json.

    model      a name of the table; of no account where weights are given
    weights    start from these: a file, or the name of a published model; the head starts anew for other classes
    teacher    learn from this model as well (distillation): a file or a name, as for weights
    """

    recipe: Recipe
    data: Source = field(default_factory=Source)
    model: str = "cait_tiny_32"
    img_size: int | None = None
    patch_size: int | None = None
    weights: str | None = None
    teacher: str | None = None
    overfit: bool = False  # validate on the training images: has it learned them by heart?

    @staticmethod
    def from_json(content: dict[str, Any]) -> Plan:
        known = {f.name for f in fields(Plan)}
        plan = {key: value for key, value in content.items() if key in known}
        return Plan(**{**plan, "recipe": Recipe.from_json(plan["recipe"]), "data": Source(**plan["data"])})

    def side(self) -> int:
        """Of the images that the model takes."""
        if self.img_size is not None:
            return self.img_size
        if self.weights is None:
            return find_model(self.model)[1].img_size[0]
        return open_pretrained(self.weights)[1].config.img_size[0]

    def starting_model(self, classes: Sequence[str]) -> tuple[Model, bool]:
        """With the weights that training starts from; and whether they are those of its head, too."""
        if self.weights is None:
            return create_model(self.model, len(classes), self.img_size, self.patch_size, seed=self.recipe.seed), True
        known = open_pretrained(self.weights)[1].class_names
        return load_model(self.weights, self.img_size, classes, self.recipe.seed)[0], known == list(classes)


def absolute(weights: str | None) -> str | None:
    """A file by its whole path, so that a run can be resumed from anywhere; a published name as it is."""
    return str(Path(weights).resolve()) if weights is not None and Path(weights).is_file() else weights
