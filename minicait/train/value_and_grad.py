"""value_and_grad: the loss of a batch and its gradients, by micro-batches on threads.

The batch is cut into pieces of an image or a few, whose activations stay in the cache. Each piece runs forward and
backward in one worker thread, with single-threaded matrix products inside; NumPy lets go of the interpreter meanwhile.
Memory depends on the piece, not on the batch.

The size of a piece does not depend on the number of threads, and the gradients of the pieces are added in their order.
Random masks belong to samples. So the result is the same, to the bit, for any number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

import autograd as ag
from autograd import Tensor, random
from autograd.backend import Array, constant

from ..models.cait import CaiT
from ..nn import Module

Loss = Callable[[Tensor, Any], Tensor]
PIECE = 70_000  # values of the token grid (tokens * dim) in a micro-batch: 1 image of xxs24 at 224, 11 of tiny at 32


def value_and_grad(
    model: Module,
    loss_fn: Loss,
    images: Any,
    targets: Any,
    threads: int | None = None,
    micro_batch: int | None = None,
) -> tuple[float, dict[str, Array]]:
    """The loss of a batch, and d(loss)/d(parameter) by name.

    loss_fn(logits, targets) must be a mean over its samples: then the mean over the pieces is the mean over the batch.
    """
    plain = (x.data if isinstance(x, Tensor) else x for x in (images, targets))
    images, targets = (constant(x, like=_like(model)) for x in plain)
    if len(images) != len(targets) or not len(images):
        raise ValueError(f"value_and_grad: {len(images)} images need as many targets, at least one, got {len(targets)}")
    on_gpu = not isinstance(images, np.ndarray)
    size = len(images) if on_gpu else micro_batch or default_micro_batch(model)
    if size < 1:
        raise ValueError(f"value_and_grad: micro_batch must be at least 1, got {size}")
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names, parameters = list(learned), list(learned.values())
    stream = random.current() or model.next_stream()

    def piece(start: int) -> tuple[Array, list[Array | None], Tensor]:
        part = slice(start, start + size)
        with random.using(stream.at(sample=stream.sample + start)):
            logits = model(images[part])
        loss = loss_fn(logits, targets[part])
        if loss.size != 1:
            raise ValueError(f"value_and_grad: the loss must be one number, the mean over samples, got {loss.shape}")
        share = len(images[part]) / len(images)
        gradients = ag.grad(loss, parameters, np.full(loss.shape, share))
        return loss.data * share, [None if g is None else g.data for g in gradients], logits.detach()

    starts = range(0, len(images), size)
    sums: list[Array | None] = [None] * len(names)
    outputs: list[Tensor] = []
    losses = []
    workers = 1 if on_gpu else min(threads or cpu_count(), len(starts))
    for loss, gradients, logits in in_order(piece, starts, workers):
        losses.append(loss)
        for i, g in enumerate(gradients):
            if g is not None:
                if sums[i] is None:
                    sums[i] = g  # an array of its own, so it can be added to
                else:
                    sums[i] += g
        if len(outputs) < 2:
            outputs.append(logits)
            if len(outputs) == 2:
                _refuse_coupled(loss_fn, outputs, losses, targets)
    return float(sum(losses)), {name: g for name, g in zip(names, sums, strict=True) if g is not None}


def default_micro_batch(model: Module) -> int:
    """As many images as keep the activations small, by the number of tokens and channels."""
    if not isinstance(model, CaiT):
        return 8
    _, tokens, dim = model.pos_embed.shape
    return max(1, PIECE // (tokens * dim))


@cache
def cpu_count() -> int:
    """The CPUs that this process may use: its affinity and a container's limit, not what the machine has."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such limit
        pass
    return count


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def in_order(work: Callable[[int], Any], items: range, workers: int) -> Iterator[Any]:
    """work(item) for all items on threads, results in order, with at most workers + 1 of them waiting."""
    with _blas().limit(limits=1, user_api="blas"):
        if workers == 1:
            yield from map(work, items)
            return
        pending: deque[Future[Any]] = deque()
        rest = iter(items)
        pool = ThreadPoolExecutor(workers, thread_name_prefix="minicait")
        run = ag.inherit_modes(work)
        try:
            for item in rest:
                pending.append(pool.submit(run, item))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # also after an exception or Ctrl-C: what has not begun never will, what runs is waited for
            pool.shutdown(wait=True, cancel_futures=True)


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
