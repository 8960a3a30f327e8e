"""A teacher for distillation: a trained model that sees the student's images as it was taught to see images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd import Tensor
from autograd.backend import Array, constant

from ..data.picture import MEAN, STD
from ..machine import blas_threads
from ..models.model import Model
from ..models.positions import bicubic
from .evaluate import predicted_logits
from .expert import Expert


class Teacher(Expert):
    """Map images, normalised as the student gets them, to logits of the student's classes."""

    def __init__(
        self,
        weights: str,
        student: Model,
        classes: Sequence[str],
        device: str = "cpu",
        threads: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        refusal = f"the teacher {weights} cannot teach this"
        super().__init__(weights, classes, refusal, None, device, threads, micro_batch)
        sides = zip(student.img_size, self.model.img_size, strict=True)
        self.resize = [self._here(bicubic(old, new)) if old != new else None for old, new in sides]

    def __call__(self, images: Any) -> Array:
        images = self._here(images)
        rows, columns = self.resize
        with blas_threads(1):  # the products are many and small: threads would take turns at them
            if rows is not None:
                images = rows @ images
            if columns is not None:
                images = images @ columns.T
        if (tuple(self.info.mean), tuple(self.info.std)) != (MEAN, STD):
            plain = images * self._channels(STD) + self._channels(MEAN)
            images = (plain - self._channels(self.info.mean)) / self._channels(self.info.std)
        return predicted_logits(self.model, images, self.threads, self.micro_batch)[:, self._here(self.outputs)]

    def _here(self, x: Any) -> Array:
        """An array on the teacher's device, in its float dtype."""
        return constant(x.data if isinstance(x, Tensor) else x, like=self.model.parameters()[0].data)

    def _channels(self, values: Sequence[float]) -> Array:
        return self._here(np.asarray(values))[:, None, None]
