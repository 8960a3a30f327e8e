"""The share of a batch that one worker computes: gradients of its leaves, added up along the tree (`tree`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd import Tensor, random
from autograd.backend import Array, array_module, on_device_of

from ..models.model import outputs_of
from ..nn import Module
from ..optim.parameters import FlatArrays, Layout
from ..optim.sweep import chunks
from .coupling import Found, find_coupling
from .objectives import Objective
from .tree import Node, fold, leaf_count, most_buffers
from .workers import shared_memory

Settings = list[dict[str, Any]]  # of every module


class Piece(NamedTuple):
    """A micro-batch: the index of its first sample in the batch, its images and its targets."""

    start: int
    images: Array
    targets: dict[str, Array]


class Share(NamedTuple):
    """A worker's part of a batch: some leaves of the tree, each a list of pieces, and how to compute them."""

    objective: Objective
    batch: int
    stream: random.Stream
    settings: Settings
    scale: float
    behind_stem: bool  # pieces are outputs of the model's stem, whose gradients are wanted
    first: int  # leaf
    leaves: list[list[Piece]]


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
        self.cancelled = False  # another thread failed

    @property
    def like(self) -> Array:
        """An array of the dtype and device of the weights."""
        return next(iter(self.learned.values())).data

    @property
    def settings(self) -> Settings:
        """Training flag and plain attributes of every module. A process does not see them change, and must be told."""
        return [{"training": module.training, **_plain(module)} for module in self.modules]

    @settings.setter
    def settings(self, settings: Settings) -> None:
        for module, own in zip(self.modules, settings, strict=True):
            for name, value in own.items():
                if getattr(module, name, None) != value:
                    setattr(module, name, value)

    def buffer(self, worker: int, number: int) -> FlatArrays:
        if (worker, number) not in self.buffers:
            array = array_module(self.like).empty(self.layout.size, self.like.dtype)
            self.buffers[worker, number] = FlatArrays(self.layout, array)
        return self.buffers[worker, number]

    def share_buffers(self, workers: int) -> None:
        """Allocate the maximum number of buffers in shared memory; pages that nobody writes cost nothing."""
        for worker in range(workers):
            for number in range(most_buffers(self.most_leaves, workers)):
                self.buffers[worker, number] = FlatArrays(self.layout, shared_memory(self.layout.size, self.like.dtype))

    @property
    def most_leaves(self) -> int:
        """Number of leaves of a batch that is large enough; more workers than these would have nothing to do."""
        return leaf_count(1 << 30, self.layout.size)


def _plain(module: Module) -> dict[str, Any]:
    """Attributes such as a drop rate, which a user may change between steps."""
    return {k: v for k, v in vars(module).items() if type(v) in (bool, int, float, str) and not k.startswith("_")}


class Summed(NamedTuple):
    """Results of a worker: its nodes of the tree, the loss of every piece, gradients for the stem's output, and the
    model's features if the objective keeps them.
    """

    nodes: list[Node]
    losses: list[Array]
    stem: list[Any]
    features: list[Any]


def look_for_coupling(state: State, worker: int, task: tuple[Settings, Array, bool]) -> Found:
    """`find_coupling` in a worker, where there is memory for it."""
    state.settings, images, behind_stem = task
    if behind_stem:  # under autocast, the stem returned float16
        images = on_device_of(images).astype(state.like.dtype, copy=False)
    return find_coupling(state.model, images, behind_stem)


def sum_share(state: State, worker: int, share: Share) -> Summed:
    """Gradients of a worker's leaves, added up as far as the tree allows."""
    losses: list[Array] = []
    stem: list[Any] = []
    features: list[Any] = []
    state.settings = share.settings

    def compute(leaf: int, number: int, accumulate: bool) -> None:
        sums = state.buffer(worker, number)
        for piece in share.leaves[leaf - share.first]:
            if state.cancelled:
                return
            loss, gradient, kept = _piece(state, share, piece, sums, accumulate)
            losses.append(loss)
            stem.append(gradient)
            features.append(kept)
            accumulate = True

    def add_buffers(into: int, number: int) -> None:
        if not state.cancelled:
            state.buffer(worker, into).array += state.buffer(worker, number).array

    leaves = range(share.first, share.first + len(share.leaves))
    nodes = fold(leaves, compute, add_buffers, lambda leaf: len(share.leaves[leaf - share.first]) == 1)
    return Summed([node._replace(buffer=(worker, node.buffer)) for node in nodes], losses, stem, features)


def _piece(state: State, share: Share, piece: Piece, sums: FlatArrays, accumulate: bool) -> tuple[Array, Any, Any]:
    """Forward and backward of one micro-batch: put or add its gradients into `sums`.

    Return its part of the loss; behind a stem, the gradient for its input; and features, if the objective keeps them.
    """
    x = Tensor(piece.images, requires_grad=True) if share.behind_stem else piece.images
    with random.using(share.stream.at(sample=share.stream.sample + piece.start)):
        outputs = outputs_of(state.model, x, share.behind_stem)
        loss = share.objective(outputs, piece.targets)
    if loss.size != 1:
        raise ValueError(f"the loss must be one number, the mean over samples, got {loss.shape}")
    part = len(piece.images) / share.batch
    seed = np.full(loss.shape, part * share.scale)
    inputs: list[Tensor] = list(state.learned.values())
    outs, dx = list(sums.values()), None
    if isinstance(x, Tensor):
        dx = array_module(piece.images).zeros_like(piece.images)
        inputs, outs = [*inputs, x], [*outs, dx]
    found = ag.grad(loss, inputs, seed, out=outs, accumulate=accumulate)
    if not accumulate:
        for name, gradient in zip(sums, found, strict=False):
            if gradient is None:  # of a block that stochastic depth dropped for all samples, for example
                sums[name][...] = 0
    kept = outputs.features if getattr(share.objective, "keeps_features", False) else None
    return loss.data if part == 1 else loss.data * part, dx, None if kept is None else kept.data


def add_slices(state: State, worker: int, job: tuple[Sequence[tuple[Any, Any]], range]) -> None:
    """Add buffers of all workers to each other, on this worker's part of the flat arrays."""
    pairs, own = job
    part = slice(own.start, own.stop)
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    for _, arrays in chunks(*(state.buffer(*name).array[part] for name in names)):
        values = dict(zip(names, arrays, strict=True))
        for into, other in pairs:
            values[into] += values[other]
