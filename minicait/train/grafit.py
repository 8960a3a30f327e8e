"""The two losses of Grafit, equations 2.1 to 2.4 of the thesis: neighbours of the same class, and views of one image.

With the memory and the target network's embeddings as constants, both are means over samples: T views of an image are T
samples of a batch, which may be in different micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from autograd import Tensor, ops
from autograd.backend import Array

from ..models.model import Outputs
from ..nn import normalised
from .recipe import Recipe

NOT_COMPARED = -1e4  # far below cos / sigma: its exponential is 0


def neighbour_loss(logits: Tensor, neighbours: Array) -> Tensor:
    """L_knn (2.3) of every sample: -log of the probability (2.2) that a neighbour is of the same class.

    logits      (B, N): cos(g(x_i), m_j) / sigma
    neighbours  (B, N): 2 if image j is of the same class, 1 if of another, 0 if it is not compared

    A sample without a neighbour of its class has a loss of 0.
    """
    same, others = neighbours == 2, neighbours > 0
    compared = (ops.logsumexp(ops.where(chosen, logits, NOT_COMPARED), -1) for chosen in (others, same))
    of_all, of_class = compared
    return ops.where(same.any(-1), of_all - of_class, 0.0)


def instance_loss(predicted: Tensor, targets: Array) -> Tensor:
    """L_inst (2.1) of every sample: minus the mean cosine of its prediction (B, D) and targets (B, T - 1, D).

    The targets of a view are the target network's embeddings of the other views of its image. The mean over the T views
    is then -1 / (T (T - 1)) times the sum over all pairs.
    """
    return -(normalised(predicted)[:, None] * normalised(targets)).sum(-1).mean(-1)


def neighbours_for(recipe: Recipe) -> Neighbours:
    """The objective of a recipe with loss="neighbours"; ValueError if another of its settings does not go with it."""
    r = recipe
    names = ("mixup", "cutmix", "mix_token", "label_smoothing", "distillation")
    if used := [name for name in names if getattr(r, name)]:
        raise ValueError(f"recipe: loss neighbours compares images by their class, and takes no {', '.join(used)}")
    if r.batch_size % r.repeats:
        views = f"{r.repeats}, the views of an image (repeats)"
        raise ValueError(f"recipe: batch_size must be a multiple of {views}, got {r.batch_size}")
    if r.instance_weight and (r.repeats < 2 or r.ema_decay is None):
        needs = "repeats of at least 2" if r.repeats < 2 else "ema_decay, for the network to compare them with"
        raise ValueError(f"recipe: an instance_weight above 0 compares views of an image, and needs {needs}")
    return Neighbours(r.repeats, r.instance_weight)


@dataclass(frozen=True)
class Neighbours:
    """L_knn of the first view of every image plus `instance_weight` times L_inst of all `views` of it (2.4).

    The other views have no neighbours, and so no L_knn: the mean over samples is `views` times too small.
    """

    views: int = 1
    instance_weight: float = 1.0
    is_mean: ClassVar[bool] = True
    keeps_features: ClassVar[bool] = True  # for the memory

    def __call__(self, outputs: Outputs, targets: Mapping[str, Array]) -> Tensor:
        loss = self.views * neighbour_loss(outputs.logits, targets["neighbours"]).mean()
        if self.instance_weight:
            assert outputs.predicted is not None
            loss = loss + self.instance_weight * instance_loss(outputs.predicted, targets["teacher"]).mean()
        return loss
