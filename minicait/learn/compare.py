"""The learner's values beside the project's, and the sentence about the first that differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .exercise import Wrong

CLOSE = {"float64": 1e-9, "float32": 1e-4}  # relative to the largest value, or to 1
WIDENED = (
    ": something in it is float64, such as an array made without a dtype (np.ones, np.zeros) "
    "or a NumPy scalar (np.sqrt(2), where math.sqrt(2) does no harm)"
)

Slips = Iterable[tuple[str, Any]]  # what typical mistakes compute, each behind the sentence about it
OVERFLOW = "e^x overflows for large x, unless you subtract the largest of each row first", np.inf


def same(what: str, got: Any, want: Any, close: float | None = None, slips: Slips = ()) -> None:
    """Raise Wrong unless an array of the learner's has the shape, dtype and values that are wanted.

    A Python float has no dtype, so it is as good as any number of floating point. If wrong values are those of a slip,
    its sentence says why; a slip of np.inf stands for all values that are not finite.
    """
    want = np.asarray(want)
    expected = f"an array of shape {want.shape}" if want.ndim else "a number"
    if got is None:
        raise Wrong(f"{what} is None: is there a `return`?")
    if not isinstance(got, np.ndarray | np.generic | float | int):
        raise Wrong(f"{what} is {kind_of(got)}, expected {expected}")
    if want.ndim and not isinstance(got, np.ndarray):
        raise Wrong(f"{what} is the number {got}, expected {expected}")
    kind = type(got).__name__ if type(got) in (bool, int) else str(np.asarray(got).dtype)
    got = np.asarray(got, want.dtype if type(got) is float and want.dtype.kind == "f" else None)
    if got.shape != want.shape:
        raise Wrong(f"{what} has shape {got.shape}, expected {want.shape}")
    if got.dtype != want.dtype:
        raise Wrong(f"{what} is {kind}, expected {want.dtype}{WIDENED if _widened(got, want) else ''}")
    close = CLOSE.get(str(want.dtype), 0) if close is None else close
    largest = float(np.abs(want[np.isfinite(want)]).max(initial=1)) if want.dtype.kind == "f" else 0
    with np.errstate(all="ignore"):
        alike = (got == want) | (np.abs(got.astype(float) - want.astype(float)) <= close * largest)
    if not alike.all():
        place = tuple(int(i) for i in np.argwhere(~alike)[0])
        at = f" at {list(place)}" if place else ""
        yours, expected = two(float(got[place]), float(want[place]))
        raise Wrong(f"{what} is wrong{at}: yours {yours}, expected {expected}{_why(got, want, slips)}")


def _why(got: np.ndarray, want: np.ndarray, slips: Slips) -> str:
    if np.allclose(got, want):  # right, but inexact
        return ""
    for why, value in slips:
        overflow = value is np.inf and not np.isfinite(got).all()
        if overflow or (np.shape(value) == got.shape and np.allclose(got, value)):
            return f"; {why}"
    return ""


def _widened(got: np.ndarray, want: np.ndarray) -> bool:
    return got.dtype == np.float64 and want.dtype == np.float32


def kind_of(value: Any) -> str:
    """None, a Tensor, an ndarray ..."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name.startswith((*'aeiouAEIOU', 'nd')) else 'a'} {name}"


def two(a: float, b: float) -> tuple[str, str]:
    """Two different numbers with as many digits as it takes to tell them apart, three at least."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return f"{a:.3g}", f"{b:.3g}"
    kind = "f" if all(x == 0 or 0.001 <= abs(x) < 1e6 for x in (a, b)) else "g"
    for digits in range(3, 17):
        texts = f"{a:.{digits}{kind}}", f"{b:.{digits}{kind}}"
        if texts[0] != texts[1]:
            break
    return texts


def unchanged(where: str, names: Sequence[str], arrays: Sequence[np.ndarray], before: Sequence[np.ndarray]) -> None:
    """Raise Wrong if an argument was edited."""
    for name, now, then in zip(names, arrays, before, strict=True):
        if not np.array_equal(now, then, equal_nan=True):
            raise Wrong(f"{where} changed its argument `{name}`: compute a new array instead")


def cotangent(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """A random upstream gradient, independent of any input."""
    return np.random.default_rng([7, 11]).standard_normal(shape).astype(dtype)
