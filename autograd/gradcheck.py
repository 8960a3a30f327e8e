"""check_grads: compare the gradients of a function with numerical ones, in a way that cannot be fooled.

The usual check sums the output, so backward starts from ones. But the sum of a softmax is constant: a softmax backward
that is scaled by 7 or returns zero passes. Here the output is weighted with a random cotangent v and the input moved in
a random direction u, and both sides of  (J^T v) . u = v . (J u)  are compared in float64:

    J u  =  (f(x - 2h) - 8 f(x - h) + 8 f(x + h) - f(x + 2h)) / 12h,   error O(h^4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from . import engine, modes
from .backend import FLOATS, Array, as_array
from .random import Stream
from .tensor import Tensor

STEPS = (1e-3, 1e-3 / 8, 1e-3 / 64)  # relative to max(1, |x|)
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
    float32_tolerance: float | None = 1e-4,
) -> None:
    """Raise GradientError unless the gradients of `fn(*inputs)` are right for every floating-point input.

    fn          takes Tensors and returns one
    inputs      an array or Tensor, or a list of them; floats are checked in float64, others are passed unchanged
    seed        for the cotangent and the directions, named in the error
    directions  number of random directions per input
    tolerance   on |(J^T v).u - v.(J u)|, relative to the sum of the absolute values of the terms of v.(J u)
    float32_tolerance   on float32 against float64 gradients, relative to the input's largest; None: float64 only

    Also checked: gradients have their input's shape and dtype and share no memory; inputs and cotangent are not edited;
    two runs agree bit for bit, and so does each input when it alone requires grad; a zero cotangent gives zero.
    """
    check = _Check(fn, inputs, seed)
    gradients = check.properties()
    for k in check.floats:
        for u in check.directions(k, directions):
            check.direction(k, gradients[k], u, tolerance)
    if float32_tolerance is not None:
        check.float32(float32_tolerance)


Graph = tuple[Tensor, dict[int, Tensor]]  # an output, and its differentiated inputs by index


class _Check:
    def __init__(self, fn: Callable[..., Tensor], inputs: Any, seed: int) -> None:
        self.fn = fn
        self.seed = seed
        self.rng = Stream(seed, "check_grads").generator()  # independent of the numbers the inputs were drawn from
        given = inputs if isinstance(inputs, list | tuple) else [inputs]
        self.arrays: list[Array] = [x.numpy() if isinstance(x, Tensor) else as_array(x) for x in given]
        self.floats = [k for k, x in enumerate(self.arrays) if x.dtype in FLOATS]
        for k in self.floats:
            self.arrays[k] = self.arrays[k].astype(np.float64, copy=False)
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

    def properties(self) -> dict[int, Array]:
        """Check what must hold for any gradient regardless of its value. Return the gradients for the cotangent."""
        before = [x.copy() for x in (*self.arrays, self.cotangent)]
        gradients = self.gradients(self.graph, self.cotangent)
        second = self.gradients(self.record(self.arrays), self.cotangent)
        zero = self.gradients(self.graph, np.zeros_like(self.cotangent))
        for k, (x, old) in enumerate(zip((*self.arrays, self.cotangent), before, strict=True)):
            if not np.array_equal(x, old, equal_nan=x.dtype in FLOATS):
                what = f"input {k}" if k < len(self.arrays) else "the upstream gradient"
                raise self.error(f"{what} was edited in place")
        for k in self.floats if len(self.floats) > 1 else []:
            alone = self.gradients(self.record(self.arrays, [k]), self.cotangent)
            if not np.array_equal(alone[k], gradients[k], equal_nan=True):
                raise self.error(f"input {k} gets a different gradient when it alone requires grad")
        for k, g in gradients.items():
            if not np.isfinite(g).all():
                raise self.error(f"the gradient of input {k} contains NaN or Inf")
            if not np.array_equal(g, second[k]):
                raise self.error(f"two runs gave different gradients of input {k}")
            if zero[k].any():
                raise self.error(f"a zero cotangent gave a gradient of input {k}")
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
        """Compare both sides along one direction of input k, with smaller steps where fn curves strongly."""
        x = self.arrays[k]
        u = u * np.maximum(1, np.abs(np.where(np.isfinite(x), x, 0))) * np.isfinite(x)  # -inf stays -inf
        analytic = float((gradient * u)[u != 0].sum())
        bends = []
        for step in STEPS:
            points = self.evaluate_along(k, u, step)
            slope = _slope(points, step)
            moved = np.ptp(np.stack(points), axis=0) != 0  # the others are constant, so they add no error however large
            terms = np.where(moved, self.cotangent * slope, 0)
            sizes = np.abs(np.where(np.isfinite(points[2]), self.cotangent * points[2], 0))
            rounding = 1e-14 / step * float(sizes[moved].sum()) + 1e-13 * float(sizes.sum())
            numerical, allowed = float(terms.sum()), tolerance * float(np.abs(terms).sum()) + rounding
            if abs(analytic - numerical) <= allowed:  # False also if one of them is NaN
                return
            bends.append(_bend(points, step))
        if not np.isfinite(numerical):
            raise self.error(f"fn is not finite within {2 * step:.0e} of input {k}")
        # The bend of a smooth function shrinks with the square of the step; that of a kink does not.
        if bends[-1] > 1e-3 and bends[-1] > bends[0] / 16:
            where = f"within {2 * step:.0e} of input {k}"
            raise self.error(f"fn is not smooth {where}; choose values farther from its kinks and jumps", KinkError)
        raise GradientError(self.explain(k, analytic, numerical, allowed))

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
        rows = []
        for i in range(self.output.size):
            one = np.zeros(self.output.size)
            one[i] = 1
            rows.append(self.gradients(self.graph, one.reshape(self.output.shape))[k].ravel())
        columns = []
        for j in range(x.size):
            u = np.zeros(x.size)
            u[j] = max(1, abs(x.flat[j]))
            columns.append(_slope(self.evaluate_along(k, u.reshape(x.shape), STEPS[-1]), STEPS[-1]).ravel() / u[j])
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


def _slope(points: list[Array], step: float) -> Array:
    far_left, left, _, right, far_right = points
    return (far_left - 8 * left + 8 * right - far_right) / (12 * step)


def _bend(points: list[Array], step: float) -> float:
    """Deviation of the slopes between neighbouring points from a straight line, relative to the largest slope."""
    slopes = [(b - a) / step for a, b in pairwise(points)]
    size = max(float(np.abs(s).max(initial=0)) for s in slopes)
    first, second, third, fourth = slopes
    bends = np.abs(first - 2 * second + third), np.abs(second - 2 * third + fourth)
    return max(float(bend.max(initial=0)) for bend in bends) / max(size, 1e-300)


def _common_factor(analytic: Array, numerical: Array) -> str:
    """Hint for a gradient that is wrong by one common factor."""
    if not analytic.any():
        return "; the analytic gradient is zero"
    factor = float((analytic * numerical).sum() / max(1e-300, (numerical * numerical).sum()))
    close = np.allclose(analytic, factor * numerical, rtol=1e-6, atol=1e-9 * np.abs(numerical).max(initial=0))
    return f"; the analytic gradient is {factor:.6g} times the numerical one" if close else ""
