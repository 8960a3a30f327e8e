"""The target network of Grafit: the moving average of the model in training, to which its predictions are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.backend import Array

from ..models.model import Model
from ..optim import EMA
from .evaluate import embedded


class TargetNetwork:
    """Embeddings by the averaged weights: xi <- tau xi + (1 - tau) theta, with tau the decay of the EMA.

    It takes the place of a teacher: it runs before the step, in evaluation mode and without gradient.

    views  T, of every image; they stand side by side in a batch
    """

    def __init__(
        self, model: Model, ema: EMA, views: int, threads: int | None = None, micro_batch: int | None = None
    ) -> None:
        self.model, self.ema, self.views = model, ema, views
        self.threads, self.micro_batch = threads, micro_batch

    def __call__(self, images: Any, samples: np.ndarray) -> Array:
        """For each image, the embeddings of the other views (B, T - 1, D); `samples` are the numbers of the images."""
        t, count = self.views, len(samples)
        if count % t or (np.reshape(samples, (-1, t)) != np.asarray(samples)[::t, None]).any():
            raise ValueError(f"the {t} views of an image must stand side by side in a batch, got images {samples[:8]}")
        with self.ema.applied():
            g = embedded(self.model, images, self.threads, self.micro_batch).reshape(count // t, t, -1)
        others = np.array([[j for j in range(t) if j != i] for i in range(t)])
        return g[:, others].reshape(count, t - 1, -1)
