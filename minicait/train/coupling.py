"""Coupled samples: a batch may be cut into micro-batches only where the result for a sample depends on no other.

A module that couples samples, such as batch normalisation, says so: `couples_samples`. One that does not say so is
detected numerically, once per model: two samples must give the same outputs together as apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import autograd as ag
from autograd import Tensor, modes, random
from autograd.backend import Array, constant, to_device

from ..models.model import Outputs, outputs_of
from ..nn import Module

TOLERANCE = 1e-3  # of the largest value: batches of another size round differently
HALF_TOLERANCE = 5e-2  # under float16 autocast

Trace = list[tuple[str, Array]]
Shapes = list[tuple[int, ...] | None]  # of each output, for one sample
Found = tuple[str | None, Shapes]  # a module that couples samples

_independent: WeakKeyDictionary[Module, Shapes] = WeakKeyDictionary()  # models that passed the check


def coupled_modules(model: Module) -> list[str]:
    """Modules in training that declare that they couple samples, such as "BatchNorm (blocks.0.norm)"."""
    return [_title(name, m) for name, m in model.named_modules() if m.couples_samples and m.training]


def refuse_coupling(
    model: Module, objective: Any, images: Array, targets: dict[str, Array], size: int, run: Callable[..., list[Found]]
) -> None:
    """Raise ValueError, with its name, if something couples the samples of a batch cut into micro-batches of `size`.

    run  calls `find_coupling` for [images] in a worker, where there is memory for it
    """
    if model not in _independent:
        coupling, shapes = run([images[[*range(min(2, size)), *range(size, min(size + 2, len(images)))]]])[0]
        if coupling is not None:
            raise ValueError(
                f"value_and_grad: {coupling} couples the samples of a batch (they give other results together than "
                "apart, or it writes a buffer), so the batch cannot be cut; set couples_samples = True in its class"
            )
        _independent[model] = shapes
    if not getattr(objective, "is_mean", False):
        count = min(2 * size, len(images))
        outputs = _random_outputs(_independent[model], count, images)
        if not _is_mean(objective, outputs, {name: values[:count] for name, values in targets.items()}, size):
            raise ValueError(
                "value_and_grad: this loss is not a mean over samples (two micro-batches together give another value "
                f"than apart), so the batch cannot be cut; pass micro_batch={len(images)} to keep it whole"
            )


def find_coupling(model: Module, images: Array) -> Found:
    """Name the first module whose output for one sample depends on the other samples, although it does not say so.

    A module that writes its buffers in forward is named, too: micro-batches would do so one after the other.
    """
    count = len(images)
    parts = slice(0, count), slice(0, (count + 1) // 2), slice((count + 1) // 2, count)
    before = {name: buffer.data.copy() for name, buffer in model.named_buffers()}
    modules = dict(model.named_modules())
    try:
        together, *apart = (_run(model, images, part) for part in parts)
        shapes: Shapes = [None if x is None else x.shape[1:] for x in together]
        for name, buffer in model.named_buffers():
            if not np.array_equal(to_device(buffer.data, "cpu"), to_device(before[name], "cpu")):
                path = name.rpartition(".")[0]
                return _title(path, modules[path]), shapes
        if not any(_differ(*outputs) for outputs in zip(together, *apart, strict=True)):
            return None, shapes
        traces = [_trace(model, images, part) for part in parts]
    finally:
        for name, buffer in model.named_buffers():
            buffer.data[...] = before[name]
    if len({tuple(name for name, _ in trace) for trace in traces}) == 1:
        for (name, whole), (_, first), (_, second) in zip(*traces, strict=True):
            if _differ(whole, first, second):
                return _title(name, modules[name]), shapes
    return _title("", model), shapes


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
    return not abs(whole - apart) > TOLERANCE * max(1.0, abs(whole))


def _run(model: Module, images: Array, part: slice) -> list[Array | None]:
    """All outputs for some of the images, with the random masks that belong to those samples."""
    stream = random.Stream(purpose="coupling", sample=part.start)
    with ag.no_grad(), random.using(stream):
        return [None if x is None else x.data for x in outputs_of(model, images[part])]


def _trace(model: Module, images: Array, part: slice) -> Trace:
    """The output of every module, innermost first."""
    trace: Trace = []
    with _listening(model, lambda name, output: trace.append((name, output.data))):
        _run(model, images, part)
    return trace


@contextmanager
def _listening(model: Module, tell: Callable[[str, Tensor], None]) -> Iterator[None]:
    def wrapped(name: str, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def listen(*args: Any) -> Tensor:
            output = forward(*args)
            tell(name, output)
            return output

        return listen

    modules = dict(model.named_modules())
    for name, module in modules.items():
        module.forward = wrapped(name, module.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in modules.values():
            del module.forward


def _differ(whole: Array | None, *parts: Array | None) -> bool:
    """True if the outputs of the parts, one after the other, are not those of the whole."""
    if whole is None:
        return False
    whole, *apart = (np.asarray(to_device(x, "cpu"), np.float64) for x in (whole, *parts))
    if whole.ndim == 0 or any(x.shape[1:] != whole.shape[1:] for x in apart) or len(whole) != sum(map(len, apart)):
        return False  # not one row per sample, so it cannot be compared; the outputs behind it can
    tolerance = HALF_TOLERANCE if modes.current().products == "float16" else TOLERANCE
    return bool((abs(whole - np.concatenate(apart)) > tolerance * abs(whole).max(initial=1e-30)).any())


def _title(name: str, module: Module) -> str:
    return f"{type(module).__name__} ({name})" if name else type(module).__name__
