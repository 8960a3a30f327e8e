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

NOT_COMPARED = -1e4  # far below cos / sigma: its exponential is 0


def neighbour_loss(logits: Tensor, related: Array) -> Tensor:
    """L_knn (2.3) of every sample: -log of the probability (2.2) that a neighbour is of the same class.

    logits   (B, N): cos(g(x_i), m_j) / sigma
    related  (B, N): 2 if image j is of the same class, 1 if of another, 0 if it is not compared

    A sample without a neighbour of its class has a loss of 0.
    """
    same = related == 2
    of_class = ops.logsumexp(ops.where(same, logits, NOT_COMPARED), -1)
    of_all = ops.logsumexp(ops.where(related > 0, logits, NOT_COMPARED), -1)
    return ops.where(same.any(-1), of_all - of_class, 0.0)


def instance_loss(predicted: Tensor, targets: Array) -> Tensor:
    """L_inst (2.1) of every sample: minus the mean cosine of its prediction (B, D) and targets (B, T - 1, D).

    The targets of a view are the target network's embeddings of the other views of its image. The mean over the T views
    is then -1 / (T (T - 1)) times the sum over all pairs.
    """
    return -(normalised(predicted)[:, None] * normalised(targets)).sum(-1).mean(-1)


@dataclass(frozen=True)
class Neighbours:
    """L_knn of the first view of every image plus `instance_weight` times L_inst of all `views` of it (2.4).

    The other views have no neighbours, and so no L_knn. The mean over all samples is therefore `views` times too small,
    and is multiplied by it.
    """

    views: int = 1
    instance_weight: float = 1.0
    is_mean: ClassVar[bool] = True
    keeps_features: ClassVar[bool] = True  # for the memory

    def __call__(self, outputs: Outputs, targets: Mapping[str, Array]) -> Tensor:
        loss = self.views * neighbour_loss(outputs.logits, targets["related"]).mean()
        if self.instance_weight:
            assert outputs.predicted is not None
            loss = loss + self.instance_weight * instance_loss(outputs.predicted, targets["other_views"]).mean()
        return loss
