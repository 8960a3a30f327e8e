"""check_grads: compare the gradients of a function with numerical ones, in a way that is hard to fool.

The usual check sums the output, so backward starts from ones. But the sum of a softmax is constant: a softmax backward
that is scaled by 7 or returns zero passes. Here the output is weighted with a random cotangent v and the input moved in
a random direction u, and both sides of  (J^T v) . u = v . (J u)  are compared in float64, see `autograd.numerical`.
That finds a wrong derivative; `autograd.contract` finds a backward that is not linear, edits its arguments, or depends
on strides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from numbers import Number
from typing import Any

import numpy as np

from . import contract, engine, modes
from .backend import FLOATS, Array, as_array
from .numerical import MORE, STEPS, USUAL, Comparison, compare, derivative, magnitudes_of
from .random import Stream
from .tensor import Tensor

COORDINATES = 32  # inputs up to this size are also perturbed one coordinate at a time
JACOBIAN_LIMIT = 4000  # evaluations to spend on the Jacobian of an error message


class GradientError(AssertionError):
    """A gradient is wrong. The message says where and by how much."""


class KinkError(GradientError):
    """The function has a kink so close to the inputs that a numerical gradient is meaningless."""


def check_grads(
    fn: Callable[..., Tensor],
    inputs: Any,
    *,
    seed: int = 0,
    directions: int = 2,
    tolerance: float = 1e-6,
    float32_tolerance: float | None = 2e-5,
) -> None:
    """Raise GradientError unless the gradients of `fn(*inputs)` are right for every floating-point input.

    fn          takes Tensors and returns one
    inputs      an array or Tensor, or a list of them; floats are checked in float64, others are passed unchanged
    seed        for the cotangent and the directions, named in the error
    directions  number of random directions per input
    tolerance   on |(J^T v).u - v.(J u)|, relative to the sum of the absolute values of the terms of v.(J u)
    float32_tolerance   on float32 against float64 gradients, relative to the input's largest; None: float64 only

    Also checked: gradients have their input's shape and dtype and share no memory; inputs, cotangent, output and saved
    arrays are not edited; two runs agree bit for bit, although fn ran on other inputs in between, and its gradients are
    right there, too, if fn accepts them; the output is the same when nothing requires grad; each input gets the same
    gradient when it alone requires grad; every backward is linear in its upstream gradient and indifferent to its
    strides.
    """
    check = _Check(fn, _arrays(fn, inputs), seed)
    check.outputs()
    elsewhere = check.elsewhere()  # recorded before the first backward: both graphs are alive
    gradients = check.properties(elsewhere)
    for k in check.floats:
        for u, steps in check.directions(k, directions):
            check.direction(k, gradients[k], u, steps, tolerance)
    if elsewhere is not None:
        elsewhere.spot_check(tolerance)
    if float32_tolerance is not None:
        check.float32(float32_tolerance)


def _arrays(fn: Callable[..., Tensor], inputs: Any) -> list[Array]:
    """Copies of the inputs as arrays, floats in float64. Plain numbers are one input if fn takes just one."""
    given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if len(given) > 1 and all(isinstance(x, Number) for x in given):
        try:
            inspect.signature(fn).bind(*given)
        except (TypeError, ValueError):
            given = [given]
    arrays: list[Array] = [x.numpy() if isinstance(x, Tensor) else as_array(x) for x in given]
    return [x.astype(np.float64 if x.dtype in FLOATS else x.dtype) for x in arrays]


Graph = tuple[Tensor, dict[int, Tensor]]  # an output, and its differentiated inputs by index


class _Check:
    """fn at some inputs, whose floats all have one dtype."""

    def __init__(self, fn: Callable[..., Tensor], arrays: list[Array], seed: int) -> None:
        self.fn = fn
        self.seed = seed
        self.rng = Stream(seed, "check_grads").generator()  # independent of the numbers the inputs were drawn from
        self.arrays = arrays
        self.given = [x.copy() for x in arrays]  # to see if fn edits them
        self.floats = [k for k, x in enumerate(arrays) if x.dtype in FLOATS]
        self.output, _ = self.graph = self.record(self.arrays)
        dtype = arrays[self.floats[0]].dtype if self.floats else self.output.dtype
        if self.output.dtype != dtype:
            raise self.error(f"{dtype} inputs gave a {self.output.dtype} output")
        self.cotangent = self.rng.standard_normal(self.output.shape).astype(dtype)

    def record(self, arrays: Sequence[Array], differentiated: list[int] | None = None) -> Graph:
        """Run fn, and return its output and the inputs to differentiate by index: by default all floats."""
        differentiated = self.floats if differentiated is None else differentiated
        tensors = [Tensor(x, requires_grad=k in differentiated) for k, x in enumerate(arrays)]
        return self.call(tensors), {k: tensors[k] for k in differentiated}

    def call(self, tensors: Sequence[Tensor]) -> Tensor:
        output = self.fn(*tensors)
        if not isinstance(output, Tensor):
            raise TypeError(f"check_grads: fn must return a Tensor, got {type(output).__name__}")
        return output

    @cached_property
    def unrecorded(self) -> Array:
        """The output when nothing requires grad."""
        with modes.no_grad():
            return self.call([Tensor(x) for x in self.arrays]).data

    def gradients(self, graph: Graph, cotangent: Array) -> dict[int, Array]:
        """Gradients by index of the input; zeros for an input that the output does not depend on."""
        output, inputs = graph
        zeros = {k: np.zeros_like(x.data) for k, x in inputs.items()}
        if not output.requires_grad:
            return zeros
        try:
            found = engine.grad(output, list(inputs.values()), cotangent, retain_graph=True)
        except RuntimeError as error:
            raise self.error(str(error)) from error
        return {k: zeros[k] if g is None else g.data for k, g in zip(inputs, found, strict=True)}

    # ---- what must hold for any gradient, whatever its value

    def outputs(self) -> None:
        """Check that fn gives one output, and leaves its inputs alone."""
        again, unrecorded = self.record(self.arrays)[0], self.unrecorded
        for k, (x, given) in enumerate(zip(self.arrays, self.given, strict=True)):
            if not np.array_equal(x, given, equal_nan=x.dtype in FLOATS):
                raise self.error(f"input {k} was edited in place")
        if not np.array_equal(again.data, self.output.data, equal_nan=True):
            raise self.error("two calls gave different outputs: fn is random or keeps a state")
        close = 1e-9 if self.output.dtype == np.float64 else 1e-5
        if not np.allclose(unrecorded, self.output.data, rtol=close, atol=close / 1000, equal_nan=True):
            raise self.error("the output differs when nothing requires grad")

    def properties(self, elsewhere: _Check | None) -> dict[int, Array]:
        """Check all that needs no numerical derivative. Return the gradients for the cotangent."""
        watched = {"the cotangent": self.cotangent, "the output": self.output.data}
        if elsewhere is not None:
            watched["the output of another call"] = elsewhere.output.data
        before = {name: x.copy() for name, x in watched.items()}
        if elsewhere is not None:
            elsewhere.gradients(elsewhere.graph, elsewhere.cotangent)
        gradients = self.gradients(self.graph, self.cotangent)
        with contract.enforced(self.output):
            self.gradients(self.graph, self.cotangent)
        second = self.gradients(self.record(self.arrays), self.cotangent)
        for name, x in watched.items():
            if not np.array_equal(x, before[name], equal_nan=True):
                raise self.error(f"{name} was edited in place")
        for k in self.floats if len(self.floats) > 1 else []:
            alone = self.gradients(self.record(self.arrays, [k]), self.cotangent)
            if not np.array_equal(alone[k], gradients[k], equal_nan=True):
                raise self.error(f"input {k} gets a different gradient when it alone requires grad")
        for k, g in gradients.items():
            if not np.isfinite(g).all():
                raise self.error(f"the gradient of input {k} contains NaN or Inf")
            if not np.array_equal(g, second[k]):
                raise self.error(f"two runs gave different gradients of input {k}: fn keeps a state")
            others = [self.cotangent, *self.arrays, *(other for j, other in gradients.items() if j != k)]
            if any(np.may_share_memory(g, other) for other in others):
                raise self.error(f"the gradient of input {k} shares memory with another array")
        return gradients

    def elsewhere(self) -> _Check | None:
        """The same check at other inputs, the given ones in another order and a little larger; None if fn rejects them.

        A backward that takes anything from the class, or from the first call, is wrong at one of the two.
        """
        rolled = [np.roll(x, 1) for x in self.arrays]
        larger = [np.where(x == 0, 2**-6, x * (1 + 2**-6)).astype(x.dtype) for x in rolled]
        for floats, others in ((larger, rolled), (larger, self.arrays), (rolled, self.arrays)):
            arrays = [(floats if k in self.floats else others)[k].copy() for k in range(len(rolled))]
            try:
                with np.errstate(all="ignore"):
                    other = _Check(self.fn, arrays, self.seed)
            except Exception:
                continue
            if other.output.shape == self.output.shape and np.isfinite(other.output.data).all():
                return other
        return None

    # ---- numerical derivatives

    def directions(self, k: int, count: int, coordinates: bool = True) -> Iterator[tuple[Array, list[float]]]:
        """Directions of input k, and the steps to try along them: its coordinates if they are few, or random ones.

        A random direction is split by the magnitude of the values, which need steps of their own: together, an error in
        the small ones would be too small to see.
        """
        x = self.arrays[k]
        finite = np.where(np.isfinite(x), x, 0)
        scale = np.where(np.isfinite(x), np.maximum(1, np.abs(finite)), 0)  # -inf stays -inf
        magnitudes = magnitudes_of(finite)
        if coordinates and x.size <= COORDINATES:
            for one, n in zip(np.eye(x.size), magnitudes.flat, strict=True):
                yield one.reshape(x.shape) * scale, STEPS[: USUAL + MORE + n]
            return
        for _ in range(count):
            u = self.rng.standard_normal(x.shape)
            u *= scale / np.sqrt((u * u).sum())
            for n in sorted({*magnitudes.flat}):
                yield u * (magnitudes == n), STEPS[: USUAL + MORE + n]

    def compare(self, k: int, gradient: Array, u: Array, steps: list[float], tolerance: float) -> Comparison:
        """Compare both sides along one direction of input k."""
        with modes.no_grad(), np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            y = self.unrecorded
            return compare(self.along(k), self.arrays[k], y, u, gradient, self.cotangent, tolerance, steps)

    def along(self, k: int) -> Callable[[Array], Array]:
        """fn as a function of input k alone."""
        others = [Tensor(x) for x in self.arrays]
        return lambda x: self.call([*others[:k], Tensor(x), *others[k + 1 :]]).data

    def direction(self, k: int, gradient: Array, u: Array, steps: list[float], tolerance: float) -> None:
        result = self.compare(k, gradient, u, steps, tolerance)
        where = f"within {2 * result.step:.0e} of input {k}"
        if result.verdict == "not finite":
            raise self.error(f"fn is not finite {where}")
        if result.verdict == "kink":
            raise self.error(f"fn is not smooth {where}; choose values farther from its kinks and jumps", KinkError)
        if result.verdict == "wrong":
            raise GradientError(self.explain(k, result))

    def spot_check(self, tolerance: float) -> None:
        """Check one random direction for each input, where there is a derivative."""
        gradients = self.gradients(self.graph, self.cotangent)
        for k in self.floats:
            for u, steps in self.directions(k, 1, coordinates=False):
                result = self.compare(k, gradients[k], u, steps, max(tolerance, 1e-4))
                if result.verdict == "wrong":
                    raise GradientError(
                        f"{self.explain(k, result)}\n  at other inputs (the given ones in another order, and a little "
                        "larger); at the inputs given it is right: is something kept between calls?"
                    )

    def float32(self, tolerance: float) -> None:
        """Check fn in float32, too, and compare with float64 at inputs that float32 represents exactly."""
        narrow = self.astype(np.float32)
        narrow.outputs()
        got = narrow.properties(narrow.elsewhere())
        wide = narrow.astype(np.float64)
        want = wide.gradients(wide.graph, narrow.cotangent.astype(np.float64))
        inputs, gradients = (x for x in wide.arrays if x.dtype in FLOATS), (*want.values(), wide.cotangent)
        self.compare_float32("output", narrow.output.data, wide.output.data, _largest(*inputs), tolerance)
        for k, g in got.items():
            self.compare_float32(f"gradient of input {k}", g, want[k], _largest(*gradients), tolerance)

    def astype(self, dtype: Any) -> _Check:
        arrays = [x.astype(dtype) if k in self.floats else x.copy() for k, x in enumerate(self.arrays)]
        return _Check(self.fn, arrays, self.seed)

    def compare_float32(self, what: str, got: Array, want: Array, largest: float, tolerance: float) -> None:
        finite = np.isfinite(want)
        if not np.array_equal(np.isfinite(got), finite):
            raise self.error(f"the float32 {what} is not finite; float32_tolerance=None leaves float32 out")
        error = _largest(got[finite] - want[finite])
        allowed = tolerance * _largest(want) + 1e-6 * largest  # the latter for cancellation
        if error > allowed:
            off = f"is off by {error:.2g} from the float64 one, allowed {allowed:.2g}"
            raise self.error(f"the float32 {what} {off}")

    # ---- error messages

    def explain(self, k: int, result: Comparison) -> str:
        x = self.arrays[k]
        lines = [
            f"check_grads: the gradient of input {k}, shape {x.shape}, is wrong ({self.summary()})",
            f"  along one direction: analytic {result.analytic:.9g}, numerical {result.numerical:.9g}, allowed "
            f"{result.allowed:.1g}",
        ]
        if x.size + self.output.size > JACOBIAN_LIMIT:
            lines.append("  (too large for the whole Jacobian: try a smaller input to see its entries)")
            return "\n".join(lines)
        a, n = self.jacobians(k)
        wrong = np.abs(a - n) > 1e-6 * np.maximum(1, np.abs(n).max(initial=0))
        worst = np.unravel_index(np.abs(a - n).argmax(), a.shape)
        out, inp = (
            tuple(map(int, np.unravel_index(i, s))) for i, s in zip(worst, (self.output.shape, x.shape), strict=True)
        )
        lines.append(f"  worst entry of the Jacobian: d output{list(out)} / d input{list(inp)}")
        lines.append(f"      analytic  {a[worst]:.9g}\n      numerical {n[worst]:.9g}")
        lines.append(f"  {int(wrong.sum())} of {wrong.size} entries differ{_common_factor(a, n)}")
        return "\n".join(lines)

    def jacobians(self, k: int) -> tuple[Array, Array]:
        """Analytic and numerical d(output)/d(input k), computed by rows and by columns."""
        x, f = self.arrays[k], self.along(k)
        ones = (one.reshape(self.output.shape) for one in np.eye(self.output.size))
        rows = [self.gradients(self.graph, one)[k].ravel() for one in ones]
        columns = []
        with modes.no_grad(), np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            for one, value, n in zip(np.eye(x.size), x.flat, magnitudes_of(x).flat, strict=True):
                u = one.reshape(x.shape) * max(1, abs(value))
                steps = STEPS[USUAL - 1 : USUAL + MORE + n]
                columns.append(derivative(f, x, self.unrecorded, u, steps).ravel() / u.max())
        return np.stack(rows), np.stack(columns, axis=1)

    def error(self, text: str, kind: type[GradientError] = GradientError) -> GradientError:
        return kind(f"check_grads: {text} ({self.summary()})")

    def summary(self) -> str:
        node = self.output.node
        names = dict.fromkeys(n.function.name for n in engine._consumers_first(node)) if node is not None else ()
        return f"operations: {' <- '.join(names) or 'none recorded'}; seed {self.seed}"


def _largest(*arrays: Array) -> float:
    """The largest finite absolute value."""
    return max((float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in arrays), default=0.0)


def _common_factor(analytic: Array, numerical: Array) -> str:
    """Hint for a gradient that is wrong by one common factor."""
    if not analytic.any():
        return "; the analytic gradient is zero"
    factor = float((analytic * numerical).sum() / max(1e-300, (numerical * numerical).sum()))
    close = np.allclose(analytic, factor * numerical, rtol=1e-6, atol=1e-9 * np.abs(numerical).max(initial=0))
    return f"; the analytic gradient is {factor:.6g} times the numerical one" if close else ""
