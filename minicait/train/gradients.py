"""Gradients: how a batch becomes gradients, on any number of threads or processes.

A batch is cut into micro-batches of an image or a few, whose activations stay in the cache. Each runs forward and
backward in one worker, with single-threaded matrix products inside. Memory depends on the micro-batch, and hardly on
the batch. On a GPU the batch stays whole by default, which is fastest there; where memory is short, `micro_batch` cuts
it, and the pieces run one after the other. A whole batch there is one CUDA graph (`step_graph`).

The size of a micro-batch does not depend on the number of workers, gradients are added along one tree (`tree`), and
random masks belong to samples. So the result has the same bits for any number of workers, and of ranks (`ranks`), each
of which computes some of the leaves.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from autograd import Tensor, modes, random
from autograd.backend import Array, array_module, as_array, constant, to_device

from ..machine import cpu_count, return_freed_memory
from ..models.model import Model, evaluated_logits
from ..nn import Module, Parameter
from ..nn.record import is_recorded
from ..optim.parameters import FlatArrays, flat_parameters
from ..optim.sweep import together
from .coupling import coupled_modules, refuse_coupling
from .memory import SharedMemory, inbox_size
from .micro_batch import default_micro_batch
from .objectives import LossFunction, Objective
from .ranks import ALONE, Ranks
from .shares import KEPT, Batch, State, Summed, look_for_coupling, sum_share
from .stem import Stem
from .step_graph import StepGraph
from .tree import additions, cover, even_ranges, leaf_count
from .workers import Processes, Threads, can_fork

AS_GRAPH, NO_GRAPH = "as a CUDA graph", "without a CUDA graph"


def value_and_grad(
    model: Module, loss_fn: Any, images: Any, targets: Any, threads: int | None = None, micro_batch: int | None = None
) -> tuple[float, dict[str, Array]]:
    """The loss of a batch, and d(loss)/d(parameter) by name, zero for parameters that had no part in it.

    The logits are those of model(images). loss_fn(logits, targets) must be a mean over its samples: then the mean over
    micro-batches is that over the batch.
    """
    gradients = Gradients(model, threads, micro_batch, processes=False)
    loss, flat = gradients(LossFunction(loss_fn, partial(evaluated_logits, model)), images, {"labels": targets})
    return float(loss), flat


class Gradients:
    """Compute the loss and gradients of batches of one model. The gradients are valid until the next call.

    processes  workers are processes instead of threads, which need not wait for each other; by default on Linux
    updated    flat arrays besides the weights to put into memory shared with processes: then these sweep over them, too
    graph      on a GPU, compute a batch that stays whole by a CUDA graph
    ranks      that share the batch; with MPI there are no worker processes, because it may not survive a fork
    """

    def __init__(
        self,
        model: Module,
        threads: int | None = None,
        micro_batch: int | None = None,
        processes: bool | None = None,
        updated: Sequence[FlatArrays] = (),
        graph: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        for name, value in (("threads", threads), ("micro_batch", micro_batch)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.model, self.micro_batch, self.updated = model, micro_batch, updated
        self.threads = threads or cpu_count()
        self.ranks = ranks
        self.use_processes = ranks is ALONE and (can_fork() if processes is None else processes)
        self.processes: Processes | None = None
        self.state: State | None = None
        self.graph = StepGraph() if graph else None
        self._launched = None if graph else f"{NO_GRAPH}: it is off"  # the last batch, on a GPU
        self.features: Array | None = None  # of the last batch, if its objective keeps them

    def __call__(
        self, objective: Objective, images: Any, targets: dict[str, Any], scale: float = 1.0, total: int | None = None
    ) -> tuple[Array, FlatArrays]:
        """The mean loss (an array of one value), and `scale` times its gradients.

        total  images of the batch, of which these are the rows of this rank
        """
        tensors = dict(self.model.named_tensors())
        state = self._state(tensors)
        images, targets = self._arrays(state, images, targets)
        coupled = coupled_modules(self.model)
        total = total or len(images)
        size, leaves = self._cut(total, state, coupled)
        own = even_ranges(len(leaves), self.ranks.size)[self.ranks.rank]
        stream = random.current() or self.model.next_stream()
        stem = None
        if size < total and isinstance(self.model, Model) and coupled_modules(self.model, in_stem=True):
            stem = Stem(self.model, images, stream, self.threads)
            images = stem.output.data
        arrays = [images, *targets.values()]
        if stem is not None:
            arrays.append(array_module(images).zeros_like(images))
        workers = min(self.threads if self.model.device == "cpu" else 1, len(own))
        crew = self._crew(state, tensors, workers, objective, arrays, bool(coupled))
        if size < total:
            refuse_coupling(
                self.model, objective, images, targets, size,
                find=lambda images: crew.run(look_for_coupling, [(state.settings, images, stem is not None)])[0],
            )  # fmt: skip
        images, *others = crew.put(arrays)
        stem_gradient = None if stem is None else others[-1]
        targets = dict(zip(targets, others, strict=False))
        settings = state.pickled_settings() if isinstance(crew, Processes) else b""
        batch = Batch(
            objective, images, targets, stem_gradient, size, leaves, workers, stream, settings, scale, own, total
        )  # fmt: skip
        one_piece = leaves[own[0]].start + 1 == leaves[own[-1]].stop
        results = self._results(state, batch, tensors, crew, whole=one_piece and stem is None)
        nodes = [node for result in results for node in result.nodes]
        pairs, nodes = additions(nodes, to_the_end=self.ranks.size == 1)
        with together():
            for into, other in pairs:
                state.buffer(*into).add(state.buffer(*other), self.threads)
        gradients = state.buffer(*nodes[0].buffer)
        if self.ranks.size > 1:
            covers = [cover(part) for part in even_ranges(len(leaves), self.ranks.size)]
            self.ranks.sum([state.buffer(*node.buffer).array for node in nodes], covers, gradients.array)
        if stem is not None:
            stem.backward(stem_gradient, state, gradients)
        features = [x for result in results for x in result.features if x is not None]
        self.features = array_module(features[0]).concatenate(features) if features else None
        losses = [loss for result in results for loss in result.losses]
        if self.ranks.size > 1:
            own_losses = [to_device(as_array(loss), "cpu") for loss in losses]
            losses = [loss for part in self.ranks.gather(own_losses) for loss in part]
        return reduce(add, losses), gradients

    def leaves(self, total: int) -> int:
        """Into how many leaves a batch of `total` images is cut: the most ranks or workers that have work."""
        return len(self._cut(total, self._state(dict(self.model.named_tensors())), coupled_modules(self.model))[1])

    def rows(self, total: int) -> list[range]:
        """The rows of a batch of `total` images that each rank computes."""
        state = self._state(dict(self.model.named_tensors()))
        size, leaves = self._cut(total, state, coupled_modules(self.model))
        parts = even_ranges(len(leaves), self.ranks.size)
        return [range(leaves[own[0]].start * size, min(leaves[own[-1]].stop * size, total)) for own in parts]

    def _results(
        self, state: State, batch: Batch, tensors: Mapping[str, Tensor], crew: Processes | Threads, whole: bool
    ) -> list[Summed]:
        """Compute the batch and return the workers' results. On a GPU, a whole batch is a CUDA graph if it can be."""
        if isinstance(batch.images, np.ndarray):
            return crew.run(sum_share, [batch] * batch.workers)
        if self.graph is not None:
            result = self.graph(state, batch, tensors.values()) if whole else None
            why_not = self.graph.why_not if whole else "the batch is cut"
            self._launched = AS_GRAPH if result is not None else f"{NO_GRAPH}: {why_not}"
            if result is not None:
                return [result]
        with modes.changed(halves=state.halves() if modes.current().products == "float16" else None):
            return crew.run(sum_share, [batch])

    def graph_line(self) -> str | None:
        """How the last batch was launched on a GPU; None on a CPU, and while nobody knows."""
        return None if self.model.device == "cpu" else self._launched

    def kept(self, gradients: FlatArrays) -> FlatArrays:
        """A copy of gradients that the next call does not overwrite, but the next call of this method does."""
        copy = self._state(dict(self.model.named_tensors())).buffer(*KEPT)
        copy.copy_from(gradients, self.threads)
        return copy

    def start(self) -> None:
        """Fork worker processes now, if there will be any: best before other threads start."""
        if self.use_processes and self.threads > 1 and self.model.device == "cpu":
            tensors = dict(self.model.named_tensors())
            self._fork(self._state(tensors), tensors)

    def close(self) -> None:
        """End worker processes; all arrays leave the memory shared with them. The next call starts others."""
        if self.processes is not None:
            self.processes.close()
            self.processes = self.state = None
            flat_parameters(self.model).move()
            for arrays in self.updated:
                arrays.move()
            for _, buffer in self.model.named_buffers():
                buffer.data = buffer.data.copy()

    def _state(self, tensors: Mapping[str, Tensor]) -> State:
        """The state, made anew if parameters were added, frozen, converted or moved to another device."""
        learned = {name: p for name, p in tensors.items() if isinstance(p, Parameter) and p.requires_grad}
        if not learned:
            raise ValueError("none of the model's parameters requires grad")
        old, kind = self.state, (next(iter(learned.values())).dtype, self.model.device)
        if old is None or old.kind != kind or list(map(id, old.learned.values())) != list(map(id, learned.values())):
            self.close()
            self.state = old = State(self.model)
        return old

    def _arrays(self, state: State, images: Any, targets: dict[str, Any]) -> tuple[Array, dict[str, Array]]:
        def beside(x: Any) -> Array:
            x = x.data if isinstance(x, Tensor) else x
            if isinstance(x, np.ndarray):
                x = np.asarray(x, order="C")  # as it arrives in a process: the layout decides the order of some sums
            return constant(x, like=state.like)

        images, targets = beside(images), {name: beside(values) for name, values in targets.items()}
        for name, values in targets.items():
            if len(images) != len(values) or not len(images):
                raise ValueError(f"{len(images)} images need as many {name}, at least one, got {len(values)}")
        return images, targets

    def _cut(self, total: int, state: State, coupled: list[str]) -> tuple[int, list[range]]:
        """Images in a piece of a batch, and the numbers of the pieces in each leaf."""
        if self.ranks.size > 1 and (found := coupled or coupled_modules(self.model, in_stem=True)):
            raise ValueError(f"{found[0]} couples the samples of a batch, so this model trains on a single rank only")
        size = self._micro_batch(total, coupled)
        pieces = -(-total // size)
        most = leaf_count(pieces, state.layout.size)
        if self.model.device != "cpu" and (self.ranks is ALONE or self.micro_batch is None):
            most = self.ranks.size  # a GPU is one worker, for which one leaf will do
        leaves = even_ranges(pieces, min(pieces, most))
        if len(leaves) < self.ranks.size:
            possible = self.ranks.size <= leaf_count(total, state.layout.size)
            smaller = f", or try micro_batch={total // self.ranks.size}" if possible else ""
            raise ValueError(
                f"a batch of {total} images in micro-batches of {size} cannot be shared by {self.ranks.size} "
                f"ranks: start at most {len(leaves)}{smaller}"
            )
        return size, leaves

    def _micro_batch(self, batch: int, coupled: list[str]) -> int:
        """Images in a piece: all of them where samples are coupled, unless that is in the stem alone."""
        asked = self.micro_batch
        if coupled:
            if asked is not None and asked < batch:
                raise ValueError(
                    f"{coupled[0]} couples the samples of a batch, so a batch of {batch} cannot be cut "
                    f"into micro-batches of {asked}; leave micro_batch out, or choose a smaller batch"
                )
            return batch
        if asked is not None:
            return asked
        on_gpus = -(-batch // self.ranks.size)  # a piece for each; for equal bits on any number, set micro_batch
        return on_gpus if self.model.device != "cpu" else default_micro_batch(self.model, batch)

    def _crew(
        self, state: State, tensors: Mapping[str, Tensor], workers: int, objective: Objective, batch: Sequence[Array],
        coupled: bool,
    ) -> Processes | Threads:  # fmt: skip
        """Choose workers: processes, unless a mode is active or the objective cannot be pickled."""
        if workers > 1 and self.use_processes and _in_no_mode() and _pickles(objective):
            return self._fork(state, tensors, batch)
        # a batch that cannot be cut has its matrix products spread over threads instead
        return Threads(state, blas=self.threads if coupled else 1)

    def _fork(self, state: State, tensors: Mapping[str, Tensor], batch: Sequence[Array] = ()) -> Processes:
        """Worker processes that see these tensors and have room for a batch: those that live, or new ones."""
        if self.processes is None or not self.processes.see(tensors) or not self.processes.has_room(batch):
            if self.processes is not None:
                self.processes.close()
            memory, flat = SharedMemory(inbox_size(batch)), flat_parameters(self.model)
            flat.move(lambda size: memory.empty((size,), flat.dtype))
            for arrays in self.updated:
                arrays.move(lambda size: memory.empty((size,), flat.dtype))
            for _, buffer in self.model.named_buffers():
                shared = memory.empty(buffer.shape, buffer.dtype)
                shared[...] = buffer.data
                buffer.data = shared
            count = min(self.threads, state.most_leaves)
            state.share_with(count, memory)
            return_freed_memory()
            self.processes = Processes(count, state, tensors, memory)
        return self.processes


def _in_no_mode() -> bool:
    return modes.current() == modes.Modes() and not is_recorded()


def _pickles(objective: Objective) -> bool:
    """True if it can be sent to another process. A function defined inside another cannot."""
    try:
        pickle.dumps(objective)
    except Exception:
        return False
    return True
