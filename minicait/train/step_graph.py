"""StepGraph: forward and backward of a batch on a GPU as one CUDA graph (`autograd.graph`).

The graph is made with the first batch and launched for every one, as long as nothing changes but values: images,
targets, the loss scale, and which samples keep which branch. These are copied into arrays that stay where they are.
Stochastic depth is a factor for every sample there, because a graph cannot leave out what it drops; that is worth it
for low rates (`MOST_DROPPED`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from operator import is_
from typing import Any

import numpy as np

from autograd import Tensor, cuda, modes
from autograd.backend import Array, array_module, device_of
from autograd.graph import Graph

from ..nn import drawn_factors, drop_path_factors, drop_path_layers
from ..nn.record import is_recorded
from .buffers import copies, restore
from .shares import Batch, State, Summed, plain, sum_share

MOST_DROPPED = 0.1  # rate of stochastic depth up to which computing all branches beats leaving some out
LEAST_LAUNCHES = 10  # of a graph, or making it was not worth it
NO_MEMORY = "there is not enough memory for it"


class StepGraph:
    """Computes batches like `sum_share`, by a graph where it can. If making one fails, it says so once."""

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.made = self.launches = 0
        self.why_not: str | None = None  # the reason, if there is no graph
        self.refused = False  # for good
        self._key: tuple[Any, ...]
        self._fixed: list[Array]  # parameters and buffers, at their addresses
        self._images: Any  # inputs of the graph, and those below
        self._targets: Any
        self._numbers: Any
        self._forget()

    def __call__(self, state: State, batch: Batch, tensors: Iterable[Tensor]) -> Summed | None:
        """None if the batch must be computed without a graph. `tensors` are the parameters and buffers of the model."""
        layers, fixed = drop_path_layers(state.modules), [tensor.data for tensor in tensors]
        if self.refused:
            return None
        if any(layer.rate > MOST_DROPPED for layer in layers):
            self._forget()
            self.why_not = f"at a drop rate above {MOST_DROPPED}, leaving out what is dropped saves more"
            return None
        self.why_not = None if _can_capture() else "a mode looks at values"
        if self.why_not is not None:
            return None
        numbers = _numbers(batch, layers)
        same = len(fixed) == len(self._fixed) and all(map(is_, fixed, self._fixed))
        if self.graph is None or not same or self._key != _key(state, batch):
            self._fixed = fixed
            if not self._make(state, batch, layers, numbers):
                return None
        assert self.graph is not None
        self._images[...] = batch.images
        for name, values in batch.targets.items():
            self._targets[name][...] = values
        self._numbers.set(numbers)
        self.graph.launch()
        self.launches += 1
        return self.graph.result

    def _make(self, state: State, batch: Batch, layers: list[Any], numbers: np.ndarray) -> bool:
        """Make the graph with a batch, launch it with the same, and compare."""
        if self.made > 2 and self.launches < LEAST_LAUNCHES * self.made:
            return self._refuse("batches or the model change too often")
        self.graph, self.made = None, self.made + 1
        xp = array_module(batch.images)
        xp.get_default_memory_pool().free_all_blocks()  # a graph has a pool of its own
        self._key = _key(state, batch)
        self._images, self._targets = batch.images.copy(), {name: a.copy() for name, a in batch.targets.items()}
        self._numbers = xp.asarray(numbers)
        scale, factors = self._numbers[0], self._numbers[1:].reshape(len(layers), len(batch.images))
        fixed = batch._replace(images=self._images, targets=self._targets, scale=scale)
        half = modes.current().products == "float16"

        def work() -> Summed:
            with drop_path_factors(layers, factors), modes.changed(halves=state.halves() if half else None):
                return sum_share(state, 0, fixed)

        gradients = state.buffer(0, 0).array  # outside of the graph's memory, like the copies of the weights
        if half:
            state.halves()
        before = copies(buffer for _, buffer in state.model.named_buffers())
        try:
            graph = Graph(work, device_of(batch.images))
        except Exception as error:  # CuPy's, CUDA's and ctypes', and CaptureError
            full = cuda.is_out_of_memory(error)
            if full:
                cuda.free_memory(error, device_of(batch.images))
            first = (str(error).splitlines() or [type(error).__name__])[0]
            return self._refuse(NO_MEMORY if full else first)
        finally:
            restore(before)
        want = gradients.copy()
        graph.launch()
        restore(before)
        if int(xp.count_nonzero(gradients.view(np.uint32) != want.view(np.uint32))):
            return self._refuse("its gradients differ from those without it")
        self.graph = graph
        return True

    def _refuse(self, reason: str) -> bool:
        warnings.warn(f"training without a CUDA graph, which is slower: {reason}", stacklevel=2)
        self.why_not, self.refused = reason, True
        self._forget()
        return False

    def _forget(self) -> None:
        """Let go of the graph, and of all that it reads."""
        self.graph, self._key, self._fixed = None, (), []
        self._images = self._targets = self._numbers = None


def _can_capture() -> bool:
    """True outside of modes that look at values."""
    return modes.current()._replace(products="as given") == modes.Modes() and not is_recorded()


def _numbers(batch: Batch, layers: list[Any]) -> np.ndarray:
    """The loss scale, and the factors of all layers of stochastic depth: all that a batch draws on the host."""
    stream = batch.stream.at(sample=batch.stream.sample + batch.first)
    factors = drawn_factors(layers, len(batch.images), stream) if layers else np.empty(0, np.float32)
    return np.concatenate([np.array([batch.scale], np.float32), factors.ravel()])


def _key(state: State, batch: Batch) -> tuple[Any, ...]:
    """Everything that a graph depends on, besides addresses and values."""
    arrays = {"": batch.images, **batch.targets}
    shapes = {name: (a.shape, a.dtype) for name, a in arrays.items()}
    return state, batch.objective, plain(batch.objective), shapes, batch.total, state.settings, modes.current()
