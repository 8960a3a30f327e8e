"""The stem of a model whose samples meet there, as in batch normalisation: on the whole batch, before micro-batches.

Its output is cut into micro-batches instead of the images. Their gradients, put together, then go back through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import autograd as ag
from autograd import modes, random
from autograd.backend import Array

from ..machine import blas_threads
from ..models.model import Model
from ..optim.parameters import FlatArrays
from .shares import State


class Stem:
    """Forward of the stem on the whole batch; `backward` adds the gradients of its parameters."""

    def __init__(self, model: Model, images: Array, stream: random.Stream, threads: int) -> None:
        self.threads = threads
        with random.using(stream), self._sharing_samples():
            self.output = model.stem(images)

    @contextmanager
    def _sharing_samples(self) -> Iterator[None]:
        with blas_threads(1), modes.changed(sample_threads=self.threads):
            yield

    def backward(self, gradient: Array, state: State, sums: FlatArrays) -> None:
        """Go back from the gradient of its output."""
        if self.output.requires_grad:
            with self._sharing_samples(), np.errstate(all="ignore"):
                ag.grad(self.output, list(state.learned.values()), gradient, out=list(sums.values()), accumulate=True)
