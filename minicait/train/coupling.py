"""Coupled samples: a batch may be cut into micro-batches only where the result for a sample depends on no other.

A module that couples samples, such as batch normalisation, says so: `couples_samples`. One that does not say so is
detected numerically, once per model: samples must give the same outputs together as apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import autograd as ag
from autograd import Tensor, modes, random
from autograd.backend import Array, constant, to_device

from ..models.model import Outputs, outputs_of
from ..nn import Module

TOLERANCE = 1e-3  # relative: batches of another size round differently
HALF_TOLERANCE = 5e-2  # under float16 autocast

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
        coupling, shapes = run([images[[0, size]]])[0]
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
    """Name the first module whose output for one of two samples depends on the other, although it does not say so.

    A module that writes its buffers in forward is named, too: micro-batches would do so one after the other.
    """
    modules, buffers = dict(model.named_modules()), dict(model.named_buffers())
    before = {name: to_device(buffer.data, "cpu").copy() for name, buffer in buffers.items()}
    try:
        shapes, together = _traced(model, images, 0)
        apart = [_traced(model, images[i : i + 1], i)[1] for i in range(2)]
        written = [name for name, old in before.items() if not np.array_equal(old, buffers[name].numpy())]
    finally:
        for name, old in before.items():
            buffers[name].data[...] = to_device(old, buffers[name].device)
    couples = [written[0].rpartition(".")[0]] if written else []
    couples += [name for name, rows in together.items() if _differ(rows, [trace.get(name) for trace in apart])]
    return (_title(couples[0], modules[couples[0]]) if couples else None), shapes


def _traced(model: Module, images: Array, sample: int) -> tuple[Shapes, dict[str, np.ndarray]]:
    """Run a model; return the shapes of its outputs, and a random projection of the output of each of its modules.

    Modules come in the order in which they finish, so the innermost first; the model itself last.
    """
    trace: dict[str, np.ndarray] = {}

    def traced(name: str, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any) -> Tensor:
            output = forward(*args)
            trace[name] = _projected(output.data)
            return output

        return call

    modules = dict(model.named_modules())
    for name, module in modules.items():
        module.forward = traced(name, module.forward)  # type: ignore[method-assign]
    try:
        with ag.no_grad(), random.using(random.Stream(purpose="coupling", sample=sample)):
            outputs = outputs_of(model, images)
    finally:
        for module in modules.values():
            del module.forward
    trace.pop("", None)
    trace[""] = np.concatenate([_projected(x.data) for x in outputs if x is not None], axis=1)
    return [None if x is None else x.shape[1:] for x in outputs], trace


def _projected(x: Array) -> np.ndarray:
    """Two numbers for each sample: a random projection, and the size that it is to be compared with."""
    rows = np.asarray(to_device(x, "cpu"), np.float64)
    rows = rows.reshape(len(rows) if rows.ndim else 1, -1)
    direction = np.random.default_rng(0).standard_normal(rows.shape[1]) / max(1, rows.shape[1]) ** 0.5
    return np.stack([rows @ direction, np.sqrt((rows**2).mean(axis=1))], axis=1)


def _differ(together: np.ndarray, apart: list[np.ndarray | None]) -> bool:
    parts = [rows for rows in apart if rows is not None]  # stochastic depth may have dropped a sample
    if sum(map(len, parts)) != len(together):
        return False  # not one row per sample, so it cannot be compared; the outputs behind it can
    tolerance = HALF_TOLERANCE if modes.current().products == "float16" else TOLERANCE
    return bool((abs(together - np.concatenate(parts)) > tolerance * together[:, 1::2].max(initial=1e-30)).any())


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


def _title(name: str, module: Module) -> str:
    return f"{type(module).__name__} ({name})" if name else type(module).__name__
