"""value_and_grad: the loss of a batch and its gradients, by micro-batches on threads, or in processes.

The batch is cut into pieces of an image or a few, whose activations are small. Each piece runs forward and backward in
one worker, a thread or a process, with single-threaded matrix products inside; NumPy lets go of the interpreter
meanwhile. Memory depends on the piece, and hardly on the batch. On a GPU the batch stays whole, which is fastest there;
where that takes too much memory, `micro_batch` cuts it, and the pieces run one after the other.

The size of a piece does not depend on the number of threads, and the gradients of the pieces are added in their order.
Random masks belong to samples. So the result is the same, to the bit, for any number of threads.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
from autograd import Tensor, modes, random
from autograd.backend import Array, array_module, constant

from ..machine import blas_threads, cpu_count, in_order, keep_freed_memory
from ..models.cait import CaiT
from ..models.summary import cost
from ..nn import Module
from ..nn.record import is_recorded
from ..optim.parameters import Flat, flatten
from .workers import Piece, Workers, shared_memory

Loss = Callable[[Tensor, Any], Tensor]
# A piece has at most so many tokens, fewer where what they keep for backward takes more than so many bytes, but enough
# of them that the products of matrices run at their full rate: 2 images of xxs24 or s24 at 224, 16 of tiny at 32.
MOST_TOKENS, MOST_BYTES, LEAST_TOKENS = 1024, 150_000_000, 392


class Task(NamedTuple):
    """What to do with a batch, and the images and targets of its pieces, by where they start: all but the model."""

    loss_fn: Loss
    batch: int
    stream: random.Stream
    training: bool
    scale: Array | None
    pieces: dict[int, tuple[Array, Array]]

    def only(self, starts: range) -> Task:
        return self._replace(pieces={start: self.pieces[start] for start in starts})


def value_and_grad(
    model: Module,
    loss_fn: Loss,
    images: Any,
    targets: Any,
    threads: int | None = None,
    micro_batch: int | None = None,
    workers: Workers | None = None,
) -> tuple[float, dict[str, Array]]:
    """The loss of a batch, and d(loss)/d(parameter) by name, zero for those that had no part in it.

    loss_fn(logits, targets) must be a mean over its samples: then the mean over the pieces is the mean over the batch.
    With `workers`, from `workers_for(model)`, pieces are computed by processes instead of threads, unless a mode such
    as `detect_anomaly` or `record` is on, which they would not see.
    """
    loss, gradients = loss_and_gradients(model, loss_fn, images, targets, threads, micro_batch, workers)
    return float(loss), gradients


def loss_and_gradients(
    model: Module,
    loss_fn: Loss,
    images: Any,
    targets: Any,
    threads: int | None = None,
    micro_batch: int | None = None,
    workers: Workers | None = None,
    scale: Array | None = None,
    is_mean: bool = False,
) -> tuple[Array, Flat]:
    """The same without waiting for a GPU: the loss is a 0-d array there. The gradients, not the loss, are multiplied by
    `scale`, an array of one value. Whether loss_fn is a mean over samples is looked at, unless it is known.
    """
    plain = (x.data if isinstance(x, Tensor) else x for x in (images, targets))
    images, targets = (constant(x, like=_like(model)) for x in plain)
    if len(images) != len(targets) or not len(images):
        raise ValueError(f"value_and_grad: {len(images)} images need as many targets, at least one, got {len(targets)}")
    on_gpu = not isinstance(images, np.ndarray)
    size = micro_batch or (len(images) if on_gpu else default_micro_batch(model, len(images)))
    if size < 1:
        raise ValueError(f"value_and_grad: micro_batch must be at least 1, got {size}")
    parameters = dict(model.named_parameters())
    learned = {name: p for name, p in parameters.items() if p.requires_grad}
    if not learned:
        raise ValueError("value_and_grad: not one of the model's parameters requires grad")
    starts = range(0, len(images), size)
    pieces = {start: (images[start : start + size], targets[start : start + size]) for start in starts}
    task = Task(loss_fn, len(images), random.current() or model.next_stream(), model.training, scale, pieces)
    count = 1 if on_gpu else min(threads or cpu_count(), len(starts))
    if workers is not None and count > 1 and workers.know(parameters) and _in_no_mode() and _pickles(loss_fn):
        results = workers.run(task.only, starts)
    else:
        results = pieces_in_order(partial(_piece, model, list(learned.values()), task), starts, count)
    sums = Flat({name: p.shape for name, p in learned.items()}, partial(_empty, like=_like(model)))
    missing = set(learned)
    outputs: list[Tensor] = []
    losses = []
    with closing(results):  # also where an error here leaves some of them unasked for
        for loss, gradients, logits in results:
            losses.append(loss)
            for name, g in zip(learned, gradients, strict=True):
                if g is not None and name in missing:
                    sums[name][...] = g
                    missing.remove(name)
                elif g is not None:
                    sums[name] += g
            if not is_mean and len(outputs) < 2:
                outputs.append(Tensor(logits))
                if len(outputs) == 2:
                    _refuse_coupled(loss_fn, outputs, losses, targets)
            del gradients, g  # or they would still be there while the next piece makes its own
    for name in missing:  # of a block that stochastic depth dropped for all samples, for example
        sums[name][...] = 0
    return reduce(add, losses), sums


def workers_for(model: Module, count: int) -> Workers:
    """Processes that compute the gradients of this model. Its weights move to memory that they share."""
    learned = [p for p in model.parameters() if p.requires_grad]
    if not learned or flatten(model, lambda size: shared_memory(size, learned[0].dtype)) is None:
        raise ValueError("workers_for: the model's parameters must have one dtype, and some of them require grad")
    return Workers(count, model, partial(_piece, model, learned))


def _in_no_mode() -> bool:
    return modes.current() == modes.Modes() and not is_recorded()


def _pickles(loss_fn: Loss) -> bool:
    """Whether it can be sent to another process. What is defined inside a function cannot."""
    try:
        pickle.dumps(loss_fn)
    except Exception:
        return False
    return True


def _empty(size: int, like: Array) -> Array:
    return array_module(like).empty(size, like.dtype)


def _piece(
    model: Module, learned: Sequence[Tensor], task: Task, start: int, place: Callable[[], list[Array]] | None = None
) -> Piece:
    """Forward and backward of one piece: its share of the loss, its gradients, and its logits.

    The gradients are new arrays, or left in those of `place()`, which is asked when forward is done.
    """
    images, targets = task.pieces[start]
    if model.training != task.training:  # in a process that did not see it change
        model.train(task.training)
    with random.using(task.stream.at(sample=task.stream.sample + start)):
        logits = model(images)
    loss = task.loss_fn(logits, targets)
    if loss.size != 1:
        raise ValueError(f"value_and_grad: the loss must be one number, the mean over samples, got {loss.shape}")
    share = len(images) / task.batch
    first: Array = np.full(loss.shape, share)
    if task.scale is not None:
        first = (task.scale * share).astype(loss.dtype).reshape(loss.shape)
    gradients = ag.grad(loss, learned, first, out=None if place is None else place())
    value = loss.data if share == 1 else loss.data * share
    return value, [None if g is None else g.data for g in gradients], logits.data


def pieces_in_order(work: Callable[[int], Any], starts: range, workers: int) -> Generator[Any]:
    """work(start) for all pieces of a batch, on threads if there are several."""
    keep_freed_memory()
    with blas_threads(1):
        yield from map(work, starts) if workers == 1 else in_order(work, starts, workers)


def default_micro_batch(model: Module, batch: int) -> int:
    """Images in a piece: what suits the model, and no more than half of the batch, so that two CPUs have work."""
    if not isinstance(model, CaiT):
        size = 8
    else:
        tokens = model.pos_embed.shape[1]
        size = min(MOST_TOKENS // tokens, MOST_BYTES // cost(model.config).activation_bytes)
        size = max(size, -(-LEAST_TOKENS // tokens))
    return min(size, max(1, -(-batch // 2)))


def _refuse_coupled(loss_fn: Loss, outputs: list[Tensor], losses: list[Array], targets: Array) -> None:
    """A loss that couples the samples of a batch has another value on two pieces together than apart."""
    count, together = len(targets), slice(0, sum(len(o) for o in outputs))
    with ag.no_grad():
        whole = float(loss_fn(ag.ops.concat(outputs), targets[together]).data)
    apart = float(sum(float(loss) for loss in losses[:2])) * count / together.stop
    if abs(whole - apart) > 1e-3 * max(1.0, abs(whole)):
        raise ValueError(
            "value_and_grad: this loss is not a mean over samples (two pieces together give another value than apart), "
            f"so the batch cannot be cut; pass micro_batch={count} to keep it whole"
        )


def _like(model: Module) -> Array:
    return next(iter(model.parameters())).data
