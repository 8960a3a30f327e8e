"""Coupled samples: a batch may be cut into micro-batches only where the result for a sample depends on no other.

A module that couples samples, such as batch normalisation, says so: `couples_samples`. One that does not say so is
detected numerically, once per model and mode: every module must give the same outputs for a few random samples together
as apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import autograd as ag
from autograd import Tensor, random
from autograd.backend import FLOATS, Array, constant, to_device

from ..models.model import Outputs, outputs_of
from ..nn import Module

SAMPLES = 3  # random images, of which the first two and the last are also computed apart
COMPARED = 256  # values of each row of a module's output, at most
TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 5e-2}  # of the largest value: other sizes round differently

Trace = dict[str, list[np.ndarray]]  # some of the output of every call of a module, by its name
Shapes = list[tuple[int, ...] | None]  # of each output, for one sample
Found = tuple[str | None, Shapes]  # a module that couples samples

# models that passed the check, by the training flags of their modules
_independent: WeakKeyDictionary[Module, dict[Any, Shapes]] = WeakKeyDictionary()


def coupled_modules(model: Module) -> list[str]:
    """Modules in training that declare that they couple samples, such as "BatchNorm (blocks.0.norm)"."""
    return [_title(name, m) for name, m in model.named_modules() if m.couples_samples and m.training]


def refuse_coupling(
    model: Module, objective: Any, images: Array, targets: dict[str, Array], size: int, find: Callable[[Array], Found]
) -> None:
    """Raise ValueError, with its name, if something couples the samples of a batch cut into micro-batches of `size`.

    find  calls `find_coupling`
    """
    known = _independent.setdefault(model, {})
    flags = tuple((id(module), module.training) for _, module in model.named_modules())
    if flags not in known:
        coupling, shapes = find(_random_images(images))
        if coupling is not None:
            raise ValueError(
                f"value_and_grad: {coupling} couples the samples of a batch (they give other results together than "
                "apart, or it writes a buffer), so the batch cannot be cut; set couples_samples = True in its class"
            )
        known[flags] = shapes
    if not getattr(objective, "is_mean", False):
        count = min(2 * size, len(images))
        outputs = _random_outputs(known[flags], count, images)
        if not _is_mean(objective, outputs, {name: values[:count] for name, values in targets.items()}, size):
            raise ValueError(
                "value_and_grad: this loss is not a mean over samples (two micro-batches together give another value "
                f"than apart), so the batch cannot be cut; pass micro_batch={len(images)} to keep it whole"
            )


def find_coupling(model: Module, images: Array) -> Found:
    """Name the first module whose output for one sample depends on the other samples, although it does not say so.

    A module that writes its buffers in forward is named, too: micro-batches would do so one after the other.
    """
    before = {name: buffer.data.copy() for name, buffer in model.named_buffers()}
    modules = dict(model.named_modules())
    try:
        (together, trace), *apart = (_run(model, images, part) for part in (slice(None), slice(-1), slice(-1, None)))
        shapes: Shapes = [None if x is None else x.shape[1:] for x in together]
        for name, buffer in model.named_buffers():
            if not np.array_equal(to_device(buffer.data, "cpu"), to_device(before[name], "cpu")):
                path = name.rpartition(".")[0]
                return _title(path, modules[path]), shapes
    finally:
        for name, buffer in model.named_buffers():
            buffer.data[...] = before[name]
    for name, calls in trace.items():
        parts = [own[name] for _, own in apart if name in own]  # stochastic depth may drop a module for all samples
        if all(len(part) == len(calls) for part in parts) and any(map(_differ, calls, *parts)):
            return _title(name, modules[name]), shapes
    if any(_differ(*outputs) for outputs in zip(together, *(own for own, _ in apart), strict=True)):
        return _title("", model), shapes
    return None, shapes


def _random_images(like: Array) -> Array:
    """A few random images, all different, shaped like those of the batch; the batch's own if they are integers."""
    if like.dtype not in FLOATS:
        return like[:SAMPLES]
    rng = np.random.default_rng(0)
    return constant(rng.standard_normal((SAMPLES, *like.shape[1:]), dtype=np.float32), like=like)


def _random_outputs(shapes: Shapes, count: int, like: Array) -> Outputs:
    rng = np.random.default_rng(0)
    drawn = (None if s is None else Tensor(constant(rng.standard_normal((count, *s)), like=like)) for s in shapes)
    return Outputs(*drawn)  # type: ignore[arg-type]


def _is_mean(objective: Any, outputs: Outputs, targets: dict[str, Array], size: int) -> bool:
    """True if the objective is the same on two micro-batches, on average, as on both together."""

    def loss(part: slice) -> float:
        cut = Outputs(*(None if x is None else Tensor(x.data[part]) for x in outputs))  # type: ignore[arg-type]
        value = objective(cut, {name: values[part] for name, values in targets.items()})
        if value.size != 1:
            raise ValueError(f"value_and_grad: the loss must be one number, the mean over samples, got {value.shape}")
        return float(value.data)

    count = len(outputs.logits)
    with ag.no_grad():
        whole, first, second = loss(slice(None)), loss(slice(size)), loss(slice(size, None))
    apart = (first * size + second * (count - size)) / count
    return not abs(whole - apart) > TOLERANCE["float32"] * max(1.0, abs(whole))


def _run(model: Module, images: Array, part: slice) -> tuple[list[Array | None], Trace]:
    """All outputs for some of the images, with the random masks of those samples, and those of every module."""
    first = range(len(images))[part].start
    stream = random.Stream(purpose="coupling", sample=first)
    with ag.no_grad(), ag.autocast("as given"), random.using(stream), _tracing(model) as trace:
        return [None if x is None else x.data for x in outputs_of(model, images[part])], trace


@contextmanager
def _tracing(model: Module) -> Iterator[Trace]:
    """Listen to every module, innermost first, as far as it is called in this thread."""
    trace: Trace = {}
    thread = get_ident()

    def wrapped(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if isinstance(output, Tensor) and output.ndim and output.size and get_ident() == thread:
                rows = output.data.reshape(len(output), -1)
                step = -(-rows.shape[1] // COMPARED)
                trace.setdefault(name, []).append(to_device(rows[:, ::step], "cpu").copy())
            return output

        return listen

    modules = {id(module): (name, module) for name, module in model.named_modules()}
    own = {key: {k: v for k, v in vars(module).items() if k == "forward"} for key, (_, module) in modules.items()}
    for name, module in modules.values():
        module.forward = wrapped(name, module.forward)  # type: ignore[method-assign]
    try:
        yield trace
    finally:
        for key, (_, module) in modules.items():
            del module.forward
            vars(module).update(own[key])


def _differ(whole: Array | None, *parts: Array | None) -> bool:
    """True if the outputs of the parts, one after the other, are not those of the whole."""
    if whole is None:
        return False
    tolerance = TOLERANCE.get(whole.dtype.name, 0.0)
    whole, *apart = (np.asarray(to_device(x, "cpu"), np.float64) for x in (whole, *parts))
    if whole.ndim == 0 or any(x.shape[1:] != whole.shape[1:] for x in apart) or len(whole) != sum(map(len, apart)):
        return False  # not one row per sample, so it cannot be compared; the outputs behind it can
    return bool((abs(whole - np.concatenate(apart)) > tolerance * abs(whole).max(initial=1e-30)).any())


def _title(name: str, module: Module) -> str:
    return f"{type(module).__name__} ({name})" if name else type(module).__name__
