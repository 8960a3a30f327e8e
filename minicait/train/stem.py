"""The stem of a model whose samples meet there, as in batch normalisation: on the whole batch, before micro-batches.

Its output is cut into micro-batches instead of the images. Their gradients, put together, then go back through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

import autograd as ag
from autograd import modes, random
from autograd.backend import Array, array_module

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

    def backward(self, gradients: Sequence[Array], state: State, sums: FlatArrays) -> None:
        """Go back from the gradients of the micro-batches, in their order."""
        if self.output.requires_grad:
            whole = array_module(gradients[0]).concatenate(gradients)
            with self._sharing_samples(), np.errstate(all="ignore"):
                ag.grad(self.output, list(state.learned.values()), whole, out=list(sums.values()), accumulate=True)
