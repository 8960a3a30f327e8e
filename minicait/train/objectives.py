"""Objectives: what training minimises.

An objective maps a model's `Outputs` and a dict of targets to the mean loss over the samples. Targets are arrays with
the samples on axis 0, so that a batch can be cut along it:

    labels        class indices (B,), or soft labels (B, C) after mixup
    token_labels  the same for every patch, (B, N) or (B, N, C), such as a Loader with label maps adds; by default,
                  every patch has the label of its image
    teacher       logits of a teacher (B, C), for distillation
    related       how every training image is related to each sample (B, N), for Grafit
    other_views   a target network's embeddings of the other views of the image (B, T - 1, D), for Grafit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from autograd import Tensor, ops
from autograd.backend import Array, array_module
from autograd.ops.loss import soft_targets

from ..models.model import Outputs
from .grafit import Neighbours
from .recipe import Recipe

Targets = Mapping[str, Array]
Objective = Callable[[Outputs, Targets], Tensor]


def objective_for(recipe: Recipe) -> Objective:
    if recipe.loss == "neighbours":
        return Neighbours(recipe.repeats, recipe.instance_weight)
    labels: Objective = CrossEntropy(recipe.label_smoothing, recipe.token_weight)
    if recipe.loss == "bce":
        labels = BinaryCrossEntropy(recipe.label_smoothing, recipe.token_weight, recipe.bce_threshold)
    if recipe.distillation == "hard":
        return HardDistillation(labels, recipe.distillation_weight)
    if recipe.distillation == "soft":
        return SoftDistillation(labels, recipe.distillation_weight, recipe.temperature)
    return labels


@dataclass(frozen=True)
class _Labels:
    """A loss between logits and labels, the labels smoothed, for every head that learns from labels.

    A second head learns from them, too, unless it has a teacher: evaluation averages both. A model that classifies
    every patch adds `token_weight` times the same loss of the patches (LV-ViT, eq. 7).
    """

    smoothing: float = 0.0
    token_weight: float = 0.5
    is_mean: ClassVar[bool] = True  # over samples, so the trainer need not check that

    def loss(self, logits: Tensor, labels: Array) -> Tensor:
        raise TypeError(f"{type(self).__name__} needs a method loss(self, logits, labels)")

    def __call__(self, outputs: Outputs, targets: Targets) -> Tensor:
        labels = targets["labels"]
        loss = self.loss(outputs.logits, labels)
        if outputs.distilled is not None and "teacher" not in targets:
            loss = (loss + self.loss(outputs.distilled, labels)) / 2
        if outputs.tokens is not None:
            of_tokens = targets.get("token_labels")
            if of_tokens is None:
                xp, shape = array_module(labels), (*outputs.tokens.shape[:2], *labels.shape[1:])
                of_tokens = xp.ascontiguousarray(xp.broadcast_to(labels[:, None], shape))
            loss = loss + self.token_weight * self.loss(outputs.tokens, of_tokens)
        return loss


class CrossEntropy(_Labels):
    """CE(softmax(logits), labels)."""

    def loss(self, logits: Tensor, labels: Array) -> Tensor:
        return ops.cross_entropy(logits, labels, self.smoothing)


@dataclass(frozen=True)
class BinaryCrossEntropy(_Labels):
    """Each class by itself: the mean over samples and classes of BCE(sigmoid(logit), label).

    With a threshold, labels above it become 1 and others 0. In DeiT III it is 0: an image that mixup made of two
    classes is fully both.
    """

    threshold: float | None = None

    def loss(self, logits: Tensor, labels: Array) -> Tensor:
        soft = soft_targets(labels, logits, self.smoothing)
        if self.threshold is not None:
            xp = array_module(soft)
            soft = xp.sign(xp.maximum(soft - self.threshold, 0))  # not (soft > threshold), which would hide a NaN
        return ops.bce_with_logits(logits, soft)


def _student(outputs: Outputs) -> Tensor:
    """Logits that learn from the teacher: those of a head of their own, if the model has one."""
    return outputs.logits if outputs.distilled is None else outputs.distilled


@dataclass(frozen=True)
class _Distillation:
    """A loss for the labels and one for a teacher: a mean over samples if that for the labels is one."""

    labels: Objective
    weight: float = 0.5

    @property
    def is_mean(self) -> bool:
        return getattr(self.labels, "is_mean", False)


class HardDistillation(_Distillation):
    """(1 - w) loss(student, labels) + w CE(student, argmax teacher)."""

    def __call__(self, outputs: Outputs, targets: Targets) -> Tensor:
        learned = ops.cross_entropy(_student(outputs), targets["teacher"].argmax(-1))
        return (1 - self.weight) * self.labels(outputs, targets) + self.weight * learned


@dataclass(frozen=True)
class SoftDistillation(_Distillation):
    """(1 - w) loss(student, labels) + w T^2 KL(softmax(teacher / T) || softmax(student / T)), a mean over samples.

    The thesis writes KL with its arguments exchanged. The reference code has them as here, and divides by samples times
    classes, which for 1000 classes makes it a thousand times weaker.
    """

    temperature: float = 3.0

    def __call__(self, outputs: Outputs, targets: Targets) -> Tensor:
        w, t = self.weight, self.temperature
        divergence = ops.kl_div(ops.log_softmax(_student(outputs) / t), ops.softmax(targets["teacher"] / t))
        return (1 - w) * self.labels(outputs, targets) + w * t**2 * divergence


@dataclass(frozen=True)
class LossFunction:
    """loss_fn(logits, targets) as an objective: the simple form, for people who write their own loop.

    evaluated  makes of the outputs the logits that the model returns when it is called
    """

    loss_fn: Callable[[Tensor, Any], Tensor]
    evaluated: Callable[[Outputs], Tensor] = attrgetter("logits")

    def __call__(self, outputs: Outputs, targets: Targets) -> Tensor:
        return self.loss_fn(self.evaluated(outputs), targets["labels"])
