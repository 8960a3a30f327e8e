"""Targets of a batch: everything that the objective compares a model's outputs with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import autograd as ag
from autograd.ops.loss import check_classes
from autograd.random import Stream
from autograd.tensor import as_tensor

from ..data.loader import Batch
from ..data.mixing import Reverse, mix, one_hot, reversed_rows
from ..data.pixels import Pixels
from ..models.model import Model
from ..nn import MixToken, Module
from ..optim import EMA
from .recipe import Recipe
from .target_network import TargetNetwork

Teacher = Callable[[Any], Any]  # images to logits


def check_recipe(recipe: Recipe, model: Module, taught: bool, own_objective: bool) -> None:
    """Raise ValueError if a recipe asks for what a model cannot do, or a teacher is missing."""
    r, kind = recipe, type(model).__name__
    if r.distillation is not None and not taught:
        raise ValueError(f"Trainer: distillation={r.distillation} needs a teacher")
    if r.distillation is None and taught:
        raise ValueError("Trainer: a teacher needs a recipe with distillation=hard or distillation=soft")
    if r.mix_token and not hasattr(model, "mix_token"):
        raise ValueError(
            f"Trainer: mix_token needs a model that mixes tokens, such as LV-ViT, got {kind}; set mix_token=false"
        )
    if r.mix_token and taught:
        raise ValueError("Trainer: mix_token mixes inside the model, where a teacher cannot see it; use one of them")
    if not own_objective and r.token_weight != Recipe.token_weight and not getattr(model, "classifies_patches", False):
        raise ValueError(f"Trainer: token_weight is for a model that classifies patches, such as LV-ViT, got {kind}")
    if not own_objective and (r.loss == "neighbours") != (has_memory := getattr(model, "has_memory", False)):
        needs = "loss=neighbours" if has_memory else "loss=cross_entropy or loss=bce"
        grafit = "" if has_memory else ", which is for a Grafit, such as grafit_deit_mini_64"
        raise ValueError(f"Trainer: {kind} needs {needs}, got loss={r.loss}{grafit}")


class BatchTargets:
    """Labels, mixed and relabelled as the recipe says, and what a teacher or a target network makes of the images."""

    def __init__(
        self,
        model: Module,
        recipe: Recipe,
        teacher: Teacher | None = None,
        ema: EMA | None = None,
        threads: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.model, self.recipe, self.teacher = model, recipe, teacher
        self.target_network = None
        if recipe.has_target_network and isinstance(model, Model) and ema is not None:
            self.target_network = TargetNetwork(model, ema, recipe.repeats, threads, micro_batch)

    def mixed(self, batch: Batch, number: int, reverse: Reverse = reversed_rows) -> tuple[Any, Any]:
        """Images and targets of batch number `number` of a run, after mixup or cutmix.

        reverse  finds the partners of rows, some of which other ranks may have
        """
        r, images = self.recipe, batch.images
        if not (r.mixup or r.cutmix):
            return images.normalised() if isinstance(images, Pixels) else images, batch.targets
        if not isinstance(self.model, Model):
            raise ValueError("Trainer: mixup and cutmix need a minicait Model, whose number of classes is known")
        if isinstance(batch.targets, dict):
            raise ValueError(f"Trainer: mixup and cutmix mix labels only, not {', '.join(sorted(batch.targets))}")
        labels, stream = one_hot(batch.labels, self.model.num_classes), Stream(r.seed, "mix", number)
        if isinstance(images, Pixels):
            return images.mix(labels, r.mixup, r.cutmix, stream)
        return mix(images, labels, r.mixup, r.cutmix, stream, reverse)

    def __call__(self, images: Any, targets: Any) -> dict[str, Any]:
        """All targets by name; the current random stream must be that of the step, which mixes tokens alike."""
        targets = dict(targets) if isinstance(targets, Mapping) else {"labels": targets}
        if isinstance(self.model, Model) and "labels" in targets:
            check_classes("labels", targets["labels"], self.model.num_classes)  # before they go to a GPU
            targets = self._relabelled(targets, self.model.num_classes)
            if isinstance(mix_token := getattr(self.model, "mix_token", None), MixToken):
                mix_token.enabled = self.recipe.mix_token
            targets = self.model.targets(targets)
        if self.teacher is not None:
            with ag.no_grad():
                targets["teacher"] = as_tensor(self.teacher(images)).data
        if self.target_network is not None:
            targets["other_views"] = self.target_network(images, targets["samples"])
        return targets

    def _relabelled(self, targets: dict[str, Any], classes: int) -> dict[str, Any]:
        """Targets with the annotator's opinion of each crop as part of its label (re-labeling)."""
        of_crops, share = targets.pop("crop_labels", None), np.float32(self.recipe.relabel)
        if not share:
            return targets
        if of_crops is None:
            raise ValueError("Trainer: relabel needs crop_labels among the targets, as a Loader with label maps has")
        labels = targets["labels"]
        own = one_hot(labels, classes) if labels.ndim == 1 else labels
        return {**targets, "labels": (1 - share) * own + share * of_crops}
