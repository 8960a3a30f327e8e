"""check_grads: compare the gradients of a function with numerical ones, in a way that cannot be fooled.

The usual check sums the output, so backward starts from ones. But the sum of a softmax is constant: a softmax backward
that is scaled by 7 or returns zero passes. Here the output is weighted with a random cotangent v and the input moved in
a random direction u, and both sides of  (J^T v) . u = v . (J u)  are compared in float64, with numerical derivatives.
That finds a wrong derivative; `autograd.contract` finds a backward that is not linear, edits its arguments, or depends
on strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import contract, engine, modes
from .backend import FLOATS, Array, as_array
from .numerical import STEPS, bend_of, magnitudes_of, slope_of
from .random import Stream
from .tensor import Tensor

COORDINATES = 32  # inputs up to this size are also perturbed one coordinate at a time
JACOBIAN_LIMIT = 4000  # evaluations to spend on the Jacobian of an error message


class GradientError(AssertionError):
    """A gradient is wrong. The message says where and by how much."""


class KinkError(GradientError):
    """The function has a kink so close to the inputs that a numerical gradient is meaningless."""


class _NotFiniteError(GradientError):
    """The function is infinite or NaN so close to the inputs that it has no numerical gradient."""


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
    right there, too; the output is the same where nothing requires grad; each input gets the same gradient when it
    alone requires grad; every backward is linear in its upstream gradient and indifferent to its strides.
    """
    check = _Check(fn, _arrays(inputs), seed)
    elsewhere = check.elsewhere()  # recorded before the first backward: both graphs are alive
    gradients = check.properties(elsewhere)
    for k in check.floats:
        for u in check.directions(k, directions):
            check.direction(k, gradients[k], u, tolerance)
    if elsewhere is not None:
        elsewhere.spot_check(tolerance)
    if float32_tolerance is not None:
        check.float32(float32_tolerance)


Graph = tuple[Tensor, dict[int, Tensor]]  # an output, and its differentiated inputs by index


class _Check:
    def __init__(self, fn: Callable[..., Tensor], arrays: list[Array], seed: int) -> None:
        self.fn = fn
        self.seed = seed
        self.rng = Stream(seed, "check_grads").generator()  # independent of the numbers the inputs were drawn from
        self.arrays = arrays
        self.floats = [k for k, x in enumerate(arrays) if x.dtype in FLOATS]
        self.output, _ = self.graph = self.record(self.arrays)
        if self.output.dtype != np.float64:
            raise self.error(f"float64 inputs gave a {self.output.dtype} output")
        self.cotangent = self.rng.standard_normal(self.output.shape)

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

    def elsewhere(self) -> _Check | None:
        """The same check at other inputs, the given ones rolled by one value; None if fn rejects those.

        A backward that takes anything from the class, or from the first call, is wrong at one of the two.
        """
        rolled = [np.roll(x, 1) if x.size > 1 else x * (1 + 2**-6) for x in self.arrays]
        arrays = [rolled[k] if k in self.floats else x for k, x in enumerate(self.arrays)]
        try:
            with np.errstate(all="ignore"):
                other = _Check(self.fn, arrays, self.seed)
        except Exception:
            return None
        return other if other.output.shape == self.output.shape and np.isfinite(other.output.data).all() else None

    def spot_check(self, tolerance: float) -> None:
        """Check one direction for each input, and ignore kinks."""
        gradients = self.gradients(self.graph, self.cotangent)
        for k in self.floats:
            try:
                self.direction(k, gradients[k], next(self.directions(k, 1)), max(tolerance, 1e-4))
            except (KinkError, _NotFiniteError):
                continue
            except GradientError as error:
                where = "at the inputs rolled by one value; at the inputs given it is right"
                raise GradientError(f"{error}\n  {where}") from None

    def properties(self, elsewhere: _Check | None) -> dict[int, Array]:
        """Check what must hold for any gradient regardless of its value. Return the gradients for the cotangent."""
        watched = {f"input {k}": x for k, x in enumerate(self.arrays)}
        watched |= {"the upstream gradient": self.cotangent, "the output": self.output.data}
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
            if not np.array_equal(x, before[name], equal_nan=x.dtype in FLOATS):
                raise self.error(f"{name} was edited in place")
        with modes.no_grad():
            if not np.allclose(self.call([Tensor(x) for x in self.arrays]).data, self.output.data, 1e-9, 1e-12, True):
                raise self.error("the output is another one where nothing requires grad")
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

    def directions(self, k: int, count: int) -> Iterator[Array]:
        """Random unit directions; for small inputs also every coordinate, lest a large derivative hide a small one."""
        shape, size = self.arrays[k].shape, self.arrays[k].size
        for _ in range(count):
            u = self.rng.standard_normal(shape)
            yield u / max(1e-30, np.sqrt((u * u).sum()))
        for one in np.eye(size if size <= COORDINATES else 0):
            yield one.reshape(shape)

    def direction(self, k: int, gradient: Array, u: Array, tolerance: float) -> None:
        """Compare both sides along one direction of input k.

        If they differ, fn may just bend strongly close to zero: then values of each magnitude move alone, in steps that
        suit them. Together, an error in the small ones would be too small to see.
        """
        x = self.arrays[k]
        finite = np.where(np.isfinite(x), x, 0)
        u = u * np.maximum(1, np.abs(finite)) * np.isfinite(x)  # -inf stays -inf
        if self.agrees(k, gradient, u, tolerance, STEPS[:3]) is None:
            return
        magnitudes = magnitudes_of(finite)
        for n in np.unique(magnitudes):
            if error := self.agrees(k, gradient, u * (magnitudes == n), tolerance, STEPS[: 3 + n]):
                raise error

    def agrees(self, k: int, gradient: Array, u: Array, tolerance: float, steps: list[float]) -> GradientError | None:
        """None if both sides agree for one of the steps, else the error."""
        analytic = float((gradient * u)[u != 0].sum())
        bends = []
        for step in steps:
            points = self.evaluate_along(k, u, step)
            numerical, magnitude, rounding = self.slope(points, step)
            difference, allowed = abs(analytic - numerical), tolerance * magnitude + rounding
            exact = step in STEPS[:3] or rounding <= 1e-3 * magnitude or difference == 0
            if difference <= allowed and exact:  # False also if one of them is NaN
                return None
            bends.append(bend_of(points, step))
        where = f"within {2 * step:.0e} of input {k}"
        if not np.isfinite(numerical):
            return self.error(f"fn is not finite {where}", _NotFiniteError)
        if min(bends) > 1e-3 and bends[-1] > bends[0] / 16:  # those of a smooth function shrink
            return self.error(f"fn is not smooth {where}; choose values farther from its kinks and jumps", KinkError)
        return GradientError(self.explain(k, analytic, numerical, allowed))

    def slope(self, points: list[Array], step: float) -> tuple[float, float, float]:
        """v . (J u), the sum of the absolute values of its terms, and its rounding error."""
        moved = np.ptp(np.stack(points), axis=0) != 0  # the others are constant, so they add no error however large
        terms = np.where(moved, self.cotangent * slope_of(points, step), 0)
        sizes = np.abs(np.where(np.isfinite(points[2]), self.cotangent * points[2], 0))
        rounding = 1e-14 / step * float(sizes[moved].sum()) + 1e-13 * float(sizes.sum())
        return float(terms.sum()), float(np.abs(terms).sum()), rounding

    def evaluate_along(self, k: int, u: Array, step: float) -> list[Array]:
        """Evaluate fn at x - 2hu, x - hu, x, x + hu, x + 2hu."""
        arrays = list(self.arrays)
        values = []
        for steps in (-2, -1, 0, 1, 2):
            arrays[k] = self.arrays[k] + steps * step * u
            with modes.no_grad(), np.errstate(invalid="ignore", divide="ignore"):
                values.append(self.call([Tensor(x) for x in arrays]).data)
        return values

    def explain(self, k: int, analytic: float, numerical: float, allowed: float) -> str:
        x = self.arrays[k]
        lines = [
            f"check_grads: the gradient of input {k}, shape {x.shape}, is wrong ({self.summary()})",
            f"  along one direction: analytic {analytic:.9g}, numerical {numerical:.9g}, allowed {allowed:.1g}",
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
        x = self.arrays[k]
        ones = (one.reshape(self.output.shape) for one in np.eye(self.output.size))
        rows = [self.gradients(self.graph, one)[k].ravel() for one in ones]
        columns = []
        for one, value, n in zip(np.eye(x.size), x.flat, magnitudes_of(x).flat, strict=True):
            u, step = one.reshape(x.shape) * max(1, abs(value)), STEPS[2]
            points = self.evaluate_along(k, u, step)
            if not bend_of(points, step) < 1e-3:
                step = STEPS[2 + n]
                points = self.evaluate_along(k, u, step)
            columns.append(slope_of(points, step).ravel() / u.max())
        return np.stack(rows), np.stack(columns, axis=1)

    def float32(self, tolerance: float) -> None:
        """Compare float32 gradients with float64 ones, at inputs that float32 represents exactly."""
        narrow = [x.astype(np.float32) if k in self.floats else x for k, x in enumerate(self.arrays)]
        cotangent = self.cotangent.astype(np.float32)
        graph = self.record(narrow)
        if graph[0].dtype != np.float32:
            raise self.error(f"float32 inputs gave a {graph[0].dtype} output")
        got = self.gradients(graph, cotangent)
        wide = [x.astype(np.float64) if k in self.floats else x for k, x in enumerate(narrow)]
        want = self.gradients(self.record(wide), cotangent.astype(np.float64))
        largest = max([float(np.abs(x).max(initial=0)) for x in (*want.values(), cotangent)])
        for k, g in got.items():
            error = float(np.abs(g - want[k]).max(initial=0))
            allowed = tolerance * float(np.abs(want[k]).max(initial=0)) + 1e-6 * largest  # the latter for cancellation
            if not error <= allowed:
                off = f"is off by {error:.2g} from the float64 one, allowed {allowed:.2g}"
                raise self.error(f"the float32 gradient of input {k} {off}")

    def error(self, text: str, kind: type[GradientError] = GradientError) -> GradientError:
        return kind(f"check_grads: {text} ({self.summary()})")

    def summary(self) -> str:
        node = self.output.node
        names = dict.fromkeys(n.function.name for n in engine._consumers_first(node)) if node is not None else ()
        return f"operations: {' <- '.join(names) or 'none recorded'}; seed {self.seed}"


def _arrays(inputs: Any) -> list[Array]:
    """The inputs as arrays, floats in float64."""
    given = inputs if isinstance(inputs, list | tuple) else [inputs]
    arrays: list[Array] = [x.numpy() if isinstance(x, Tensor) else as_array(x) for x in given]
    return [x.astype(np.float64, copy=False) if x.dtype in FLOATS else x for x in arrays]


def _common_factor(analytic: Array, numerical: Array) -> str:
    """Hint for a gradient that is wrong by one common factor."""
    if not analytic.any():
        return "; the analytic gradient is zero"
    factor = float((analytic * numerical).sum() / max(1e-300, (numerical * numerical).sum()))
    close = np.allclose(analytic, factor * numerical, rtol=1e-6, atol=1e-9 * np.abs(numerical).max(initial=0))
    return f"; the analytic gradient is {factor:.6g} times the numerical one" if close else ""
