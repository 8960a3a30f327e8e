"""What training minimises: cross entropy against soft targets, and distillation from a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograd import Tensor, ops
from autograd.backend import Array, array_module, is_array, to_device
from autograd.ops.loss import check_classes

from ..data.mixing import soft_targets
from .recipe import Recipe


def objective(
    recipe: Recipe, classes: int, targets: Any, taught: Array | None, device: str
) -> tuple[Callable[[Tensor, Any], Tensor], Array]:
    """A loss and the targets for it: smoothed if the recipe says so, and joined with the logits that a teacher gave."""
    targets = targets.data if isinstance(targets, Tensor) else targets
    targets = targets if is_array(targets) else np.asarray(targets)
    check_classes("cross_entropy", targets, classes)  # before they go to a GPU
    if targets.dtype.kind in "iu" and (recipe.label_smoothing or taught is not None):
        targets = soft_targets(to_device(targets, "cpu"), classes, recipe.label_smoothing)
    if taught is None:
        return ops.cross_entropy, targets
    targets, taught = to_device(targets, device), to_device(taught, device)
    if recipe.distillation == "hard":
        return ops.cross_entropy, hard_distillation(targets, taught, recipe.distillation_weight)
    both = array_module(targets).concatenate([targets, taught.astype(targets.dtype)], axis=1)
    return SoftDistillation(recipe.distillation_weight, recipe.temperature), both


def hard_distillation(targets: Array, teacher: Array, weight: float = 0.5) -> Array:
    """Targets for (1 - w) CE(student, label) + w CE(student, argmax teacher).

    Cross entropy is linear in its targets, so the sum of the two is one cross entropy against their blend.
    """
    classes = array_module(teacher).arange(teacher.shape[-1])
    decided = (classes == teacher.argmax(-1)[:, None]).astype(targets.dtype)
    return (1 - weight) * targets + weight * decided


@dataclass(frozen=True)
class SoftDistillation:
    """(1 - w) CE(student, label) + w T^2 KL(softmax(teacher / T) || softmax(student / T)).

    The targets of this loss are soft labels and the teacher's logits side by side, (B, 2K).
    """

    weight: float = 0.5
    temperature: float = 3.0

    def __call__(self, logits: Tensor, both: Array) -> Tensor:
        classes, w, t = logits.shape[-1], self.weight, self.temperature
        targets, teacher = both[:, :classes], both[:, classes:]
        divergence = ops.kl_div(ops.log_softmax(logits / t), ops.softmax(teacher / t))
        return (1 - w) * ops.cross_entropy(logits, targets) + w * t**2 * divergence
