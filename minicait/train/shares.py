"""The share of a batch that one worker computes: gradients of its leaves, added up along the tree (`tree`)."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd import Tensor, random
from autograd.backend import Array, array_module, on_device_of

from ..models.model import outputs_of
from ..nn import Module
from ..optim.parameters import FlatArrays, Layout, flat_parameters
from .coupling import Found, find_coupling
from .memory import SharedMemory
from .objectives import Objective
from .tree import Node, even_ranges, fold, leaf_count, most_buffers

Settings = list[dict[str, Any]]  # of every module
KEPT = (-1, 0)  # the buffer of gradients that the next batch does not overwrite


class Batch(NamedTuple):
    """A batch and how to compute it, for all workers. Each takes its share of the leaves."""

    objective: Objective
    images: Array
    targets: dict[str, Array]
    stem_gradient: Array | None  # to be computed, if `images` are outputs of the model's stem
    size: int  # of a piece
    leaves: list[range]  # the numbers of the pieces of each
    workers: int
    stream: random.Stream
    settings: bytes  # of the model, for processes
    scale: float | Array
    own: range  # the leaves of this rank
    total: int  # images of the whole batch; `images` are those of this rank's leaves

    @property
    def first(self) -> int:
        """Row of the whole batch that is the first of `images`."""
        return self.leaves[self.own[0]].start * self.size


class State:
    """State common to all workers: the model, its learned parameters, and buffers for sums of gradients."""

    def __init__(self, model: Module) -> None:
        self.model = model
        self.modules = [module for _, module in model.named_modules()]
        self.learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.layout = Layout.of(
            {name: p.shape for name, p in self.learned.items()}, getattr(model, "no_decay", frozenset())
        )
        self.kind = self.like.dtype, model.device
        self.buffers: dict[tuple[int, int], FlatArrays] = {}  # by worker and number
        self._pickled: tuple[Settings, bytes] = ([], b"")
        self._halves: FlatArrays | None = None
        self.cancelled = False  # another thread failed

    @property
    def like(self) -> Array:
        """An array of the dtype and device of the weights."""
        return next(iter(self.learned.values())).data

    @property
    def settings(self) -> Settings:
        """Training flag and plain attributes of every module. A process does not see them change, and must be told."""
        return [
            {"training": module.training, **{k: v for k, v in plain(module).items() if not k.startswith("_")}}
            for module in self.modules
        ]

    @settings.setter
    def settings(self, settings: Settings) -> None:
        for module, own in zip(self.modules, settings, strict=True):
            for name, value in own.items():
                if getattr(module, name, None) != value:
                    setattr(module, name, value)

    def pickled_settings(self) -> bytes:
        """Settings as bytes, which are made anew only if a setting changed."""
        settings = self.settings
        if settings != self._pickled[0]:
            self._pickled = settings, pickle.dumps(settings)
        return self._pickled[1]

    def buffer(self, worker: int, number: int) -> FlatArrays:
        if (worker, number) not in self.buffers:
            array = array_module(self.like).empty(self.layout.size, self.like.dtype)
            self.buffers[worker, number] = FlatArrays(self.layout, array)
        return self.buffers[worker, number]

    def halves(self) -> dict[int, Array]:
        """float16 copies of the weights, in one launch, by their address."""
        flat = flat_parameters(self.model)
        if self._halves is None or self._halves.layout is not flat.layout:
            self._halves = FlatArrays(flat.layout, array_module(flat.array).empty(flat.layout.size, np.float16))
        self._halves.array[...] = flat.array
        return {p.data.data.ptr: self._halves[name] for name, p in flat.parameters.items()}

    def share_with(self, workers: int, memory: SharedMemory) -> None:
        """Allocate the maximum number of buffers in shared memory; pages that nobody writes cost nothing."""
        numbers = range(most_buffers(self.most_leaves, workers))
        names = [KEPT, *((worker, number) for worker in range(workers) for number in numbers)]
        arrays = memory.empty((len(names), self.layout.size), self.like.dtype)
        self.buffers = {name: FlatArrays(self.layout, array) for name, array in zip(names, arrays, strict=True)}
        self.cancelled = False

    @property
    def most_leaves(self) -> int:
        """Number of leaves of a batch that is large enough; more workers than these would have nothing to do."""
        return leaf_count(1 << 30, self.layout.size)


def plain(x: Any) -> dict[str, Any]:
    """Attributes such as a drop rate, which a user may change between steps: numbers, strings, and tuples of these."""
    return {name: value for name, value in getattr(x, "__dict__", {}).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float, str) or isinstance(value, np.generic)


class Summed(NamedTuple):
    """Results of a worker: its nodes of the tree, and for every piece the loss, and features if the objective keeps
    them.
    """

    nodes: list[Node]
    losses: list[Array]
    features: list[Any]


def look_for_coupling(state: State, worker: int, task: tuple[Settings, Array, bool]) -> Found:
    """`find_coupling` in a worker, where there is memory for it."""
    state.settings, images, behind_stem = task
    if behind_stem:  # under autocast, the stem returned float16
        images = on_device_of(images).astype(state.like.dtype, copy=False)
    return find_coupling(state.model, images, behind_stem)


def sum_share(state: State, worker: int, batch: Batch) -> Summed:
    """Gradients of a worker's leaves, added up as far as the tree allows."""
    losses: list[Array] = []
    features: list[Any] = []
    if batch.settings:
        state.settings = pickle.loads(batch.settings)

    def compute(leaf: int, number: int, accumulate: bool) -> None:
        sums = state.buffer(worker, number)
        for piece in batch.leaves[leaf]:
            if state.cancelled:
                return
            loss, kept = _piece(state, batch, piece, sums, accumulate)
            losses.append(loss)
            features.append(kept)
            accumulate = True

    def add_buffers(into: int, number: int) -> None:
        if not state.cancelled:
            state.buffer(worker, into).array += state.buffer(worker, number).array

    part = even_ranges(len(batch.own), batch.workers)[worker]
    leaves = batch.own[part.start : part.stop]
    nodes = fold(leaves, compute, add_buffers, lambda leaf: len(batch.leaves[leaf]) == 1)
    return Summed([node._replace(buffer=(worker, node.buffer)) for node in nodes], losses, features)


def _piece(state: State, batch: Batch, number: int, sums: FlatArrays, accumulate: bool) -> tuple[Array, Any]:
    """Forward and backward of one micro-batch: put or add its gradients into `sums`.

    Return its part of the loss, and features, if the objective keeps them.
    """
    start, behind_stem = number * batch.size, batch.stem_gradient is not None
    piece = slice(start - batch.first, start - batch.first + batch.size)
    images = batch.images[piece]
    x = Tensor(images, requires_grad=True) if behind_stem else images
    with random.using(batch.stream.at(sample=batch.stream.sample + start)):
        outputs = outputs_of(state.model, x, behind_stem)
        loss = batch.objective(outputs, {name: values[piece] for name, values in batch.targets.items()})
    if loss.size != 1:
        raise ValueError(f"the loss must be one number, the mean over samples, got {loss.shape}")
    part = len(images) / batch.total
    scale = part * batch.scale if part < 1 else batch.scale
    seed = np.full(loss.shape, scale) if isinstance(scale, float) else scale.reshape(loss.shape)
    inputs: list[Tensor] = list(state.learned.values())
    outs = list(sums.values())
    if batch.stem_gradient is not None:
        inputs, outs = [*inputs, x], [*outs, batch.stem_gradient[piece]]
    found = ag.grad(loss, inputs, seed, out=outs, accumulate=accumulate)
    if not accumulate:
        for name, gradient in zip(sums, found, strict=False):
            if gradient is None:  # of a block that stochastic depth dropped for all samples, for example
                sums[name][...] = 0
    kept = outputs.features if getattr(batch.objective, "keeps_features", False) else None
    return loss.data if part == 1 else loss.data * part, None if kept is None else kept.data
