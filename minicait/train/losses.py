"""What training minimises: cross entropy against soft targets, and distillation from a teacher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autograd import Tensor, ops
from autograd.backend import Array


def hard_distillation(targets: np.ndarray, teacher: np.ndarray, weight: float = 0.5) -> np.ndarray:
    """Targets for (1 - w) CE(student, label) + w CE(student, argmax teacher).

    Cross entropy is linear in its targets, so the sum of the two is one cross entropy against their blend.
    """
    decided = np.zeros_like(targets)
    decided[np.arange(len(targets)), teacher.argmax(-1)] = 1
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
