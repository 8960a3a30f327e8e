"""Coupled samples: a batch may be cut into micro-batches only where the result for a sample depends on no other.

A module that couples samples, such as batch normalisation, says so: `couples_samples`. One that does not say so is
detected numerically, once per model and mode: every module must give the same outputs for a few random samples together
as apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

import autograd as ag
from autograd import Tensor, random
from autograd.backend import FLOATS, Array, constant, to_device

from ..models.model import Outputs, outputs_of
from ..nn import Module

SAMPLES = 2  # random images, computed together and apart
COMPARED = 256  # values of an output for one sample, or of a gradient, at most
ROUNDING = 16  # machine epsilons of the largest gradient
TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 5e-2}  # of the largest value: other sizes round differently

Trace = dict[str, list[list[np.ndarray]]]  # of every call of a module, by name: some of its inputs and its output
Shapes = list[tuple[int, ...] | None]  # of each output, for one sample
Found = tuple[str | None, Shapes]  # a module that couples samples


class Run(NamedTuple):
    """A model on a few samples: its outputs, values on the way, and gradients."""

    outputs: list[Array | None]
    trace: Trace
    gradients: dict[str, np.ndarray]
    tolerance: float
    rounding: float

    @property
    def shapes(self) -> Shapes:
        return [None if x is None else x.shape[1:] for x in self.outputs]


# models that passed the check, by the training flags of their modules
_independent: WeakKeyDictionary[Module, dict[Any, Shapes]] = WeakKeyDictionary()


def coupled_modules(model: Module, in_stem: bool = False) -> list[str]:
    """Modules in training that declare that they couple samples, such as "BatchNorm (blocks.0.norm)".

    in_stem  those in the stem of a Model, which runs on the whole batch, instead of the others
    """
    stem = getattr(model, "stem_modules", ())
    if in_stem and not stem:
        return []
    coupled = [(name, m) for name, m in model.named_modules() if m.couples_samples and m.training]
    return [_title(name, m) for name, m in coupled if (name.partition(".")[0] in stem) == in_stem]


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
                f"{coupling} couples the samples of a batch (results depend on which samples share "
                "a batch, or it writes a buffer), so the batch cannot be cut; set couples_samples = True in its class"
            )
        known[flags] = shapes
    declared = getattr(objective, "is_mean", False)
    size = min(size, max(1, len(images) // 2))  # a rank may have a single piece
    if not declared and not _is_mean(objective, _random_outputs(known[flags], images), targets, size):
        raise ValueError(
            "this loss is not a mean over samples (the whole batch gives another value than its micro-batches), so "
            f"the batch cannot be cut; pass micro_batch={len(images)} to keep it whole"
        )


def find_coupling(model: Module, images: Array, behind_stem: bool = False) -> Found:
    """Name the first module that couples samples although it does not say so; behind a stem, `images` are its outputs.

    Its outputs for a few samples differ between computing them together and apart, although its inputs do not; or it
    writes a buffer in forward; or the gradients of its own parameters differ, as with a coupling behind a gain of zero.
    """
    before = {name: buffer.data.copy() for name, buffer in model.named_buffers()}
    modules = dict(model.named_modules())
    try:
        together, *apart = (_run(model, images, part, behind_stem) for part in (slice(0, 2), slice(0, 1), slice(1, 2)))
        for name, buffer in model.named_buffers():
            if not np.array_equal(to_device(buffer.data, "cpu"), to_device(before[name], "cpu")):
                path = name.rpartition(".")[0]
                return _title(path, modules[path]), together.shapes
    finally:
        for name, buffer in model.named_buffers():
            buffer.data[...] = before[name]
    for name, calls in together.trace.items():
        parts = [run.trace[name] for run in apart if name in run.trace]  # stochastic depth may drop a module
        if all(len(part) == len(calls) for part in parts):
            for (*inputs, output), *others in zip(calls, *parts, strict=True):
                if _differ(output, *(o[-1] for o in others)) and not any(
                    _differ(x, *(o[i] for o in others)) for i, x in enumerate(inputs)
                ):
                    return _title(name, modules[name]), together.shapes
    if any(_differ(*outputs) for outputs in zip(together.outputs, *(run.outputs for run in apart), strict=True)):
        return _title("", model), together.shapes
    largest = max((abs(g).max(initial=0.0) for g in together.gradients.values()), default=0.0)
    for name, g in together.gradients.items():
        with np.errstate(invalid="ignore"):  # gradients that are not finite are looked for elsewhere
            difference = abs(g - sum(run.gradients[name] for run in apart)).max(initial=0.0)
            differ = difference > max(10 * together.tolerance * abs(g).max(initial=0.0), together.rounding * largest)
        if differ:
            path = name.rpartition(".")[0]
            return _title(path, modules[path]), together.shapes
    return None, together.shapes


def _random_images(like: Array) -> Array:
    """A few random images, all different, shaped like those of the batch; the batch's own if they are integers."""
    if like.dtype not in FLOATS:
        return like[:SAMPLES]
    rng = np.random.default_rng(0)
    return constant(rng.standard_normal((SAMPLES, *like.shape[1:]), dtype=np.float32), like=like)


def _random_outputs(shapes: Shapes, images: Array) -> Outputs:
    rng = np.random.default_rng(0)
    drawn = (None if s is None else Tensor(constant(rng.standard_normal((len(images), *s)), images)) for s in shapes)
    return Outputs(*drawn)  # type: ignore[arg-type]


def _is_mean(objective: Any, outputs: Outputs, targets: dict[str, Array], size: int) -> bool:
    """True if the objective of the batch is the mean over its micro-batches."""

    def loss(part: slice) -> float:
        cut = Outputs(*(None if x is None else Tensor(x.data[part]) for x in outputs))  # type: ignore[arg-type]
        value = objective(cut, {name: values[part] for name, values in targets.items()})
        if value.size != 1:
            raise ValueError(f"the loss must be one number, the mean over samples, got {value.shape}")
        return float(value.data)

    count = len(outputs.logits)
    with ag.no_grad():
        whole = loss(slice(None))
        pieces = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        apart = sum(loss(piece) * (piece.stop - piece.start) for piece in pieces) / count
    return not abs(whole - apart) > TOLERANCE["float32"] * max(1.0, abs(whole))


def _run(model: Module, images: Array, part: slice, behind_stem: bool) -> Run:
    """Run forward and backward on some of the images, with the random masks of those samples."""
    first = range(len(images))[part].start
    stream = random.Stream(purpose="coupling", sample=first)
    with ag.autocast("as given"), random.using(stream), _tracing(model) as trace:
        outputs = outputs_of(model, Tensor(images[part]) if behind_stem else images[part], behind_stem)
    logits = outputs.logits
    cotangent = constant(np.random.default_rng(0).standard_normal((len(images), *logits.shape[1:]))[part], logits.data)
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = ag.grad(logits, list(learned.values()), cotangent) if logits.requires_grad else [None] * len(learned)
    gradients = {
        name: np.zeros(1) if g is None else _some(g.data.reshape(1, -1))[0].astype(np.float64)
        for name, g in zip(learned, found, strict=True)
    }
    arrays = [None if x is None else x.data for x in outputs]
    rounding = ROUNDING * float(np.finfo(logits.dtype).eps)
    return Run(arrays, trace, gradients, TOLERANCE.get(logits.dtype.name, 0.0), rounding)


def _some(rows: Array) -> np.ndarray:
    """Some values of each row, on the host."""
    return to_device(rows[:, :: -(-rows.shape[1] // COMPARED)], "cpu").copy()


@contextmanager
def _tracing(model: Module) -> Iterator[Trace]:
    """Listen to every module, innermost first, as far as it is called in this thread."""
    trace: Trace = {}
    thread = get_ident()

    def wrapped(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def listen(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if get_ident() == thread and isinstance(output, Tensor) and output.ndim and output.size:
                inputs = [x for x in args if isinstance(x, Tensor) and x.ndim and x.size]
                trace.setdefault(name, []).append([_some(x.data.reshape(len(x), -1)) for x in [*inputs, output]])
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
