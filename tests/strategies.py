"""hypothesis strategies for shapes, axes, memory layouts and indices. Values come from a seeded generator."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

SIZES = st.integers(0, 4)
SEEDS = st.integers(0, 2**32 - 1)


@cache  # hypothesis validates a strategy once
def shapes(min_dims: int = 0, max_dims: int = 4, min_size: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(min_size, 4), min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def broadcastable(draw: Any, count: int = 2, min_size: int = 0) -> list[tuple[int, ...]]:
    """Shapes that broadcast together: each drops leading axes of a common shape and shrinks others to 1."""
    full = draw(shapes(max_dims=4, min_size=min_size))
    result = []
    for _ in range(count):
        start = draw(st.integers(0, len(full)))
        result.append(tuple(draw(st.sampled_from((1, n))) for n in full[start:]))
    return result


@cache
def axes(ndim: int, empty: bool = True) -> st.SearchStrategy[Any]:
    """NumPy's axis argument: None, one axis counted from either end, or several."""
    if ndim == 0:
        return st.sampled_from([None, ()] if empty else [None])
    one = st.integers(-ndim, ndim - 1)
    several = st.lists(one, min_size=0 if empty else 1, unique_by=lambda a: a % ndim).map(tuple)
    return st.one_of(st.none(), one, several)


@st.composite
def arrays(draw: Any, shape: tuple[int, ...], low: float | None = None, high: float = 2.0) -> np.ndarray:
    """Normal float64 values, or uniform ones in [low, high], in one of many memory layouts."""
    rng = np.random.default_rng(draw(SEEDS))
    x = rng.standard_normal(shape) if low is None else rng.uniform(low, high, shape)
    return laid_out(x, draw(st.sampled_from(LAYOUTS)))


LAYOUTS = ("C", "F", "every second", "backwards", "inside", "read-only")


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """The same values in another memory layout, with NaN in the gaps."""
    if layout == "F":
        return x.copy("F")
    if layout == "every second":
        view = np.full([2 * n for n in x.shape], np.nan)[(..., *(slice(None, None, 2) for _ in x.shape))]
    elif layout == "backwards":
        view = np.empty(x.shape)[(..., *(slice(None, None, -1) for _ in x.shape))]
    elif layout == "inside":
        view = np.full([n + 3 for n in x.shape], np.nan)[(..., *(slice(1, 1 + n) for n in x.shape))]
    else:
        view = x.copy()
    view[...] = x
    view.flags.writeable = layout != "read-only"
    return view


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> Any:
    """Any index of x[...]: integers, slices, None, an ellipsis, repeated integers, masks."""
    parts: list[Any] = []
    axis = 0
    ellipsis = False
    while axis < len(shape):
        n = shape[axis]
        kinds = ["slice", "none"] + (["integer", "list", "tuple", "array"] if n else []) + ["mask"]
        if not ellipsis:
            kinds.append("ellipsis")
        kind = draw(st.sampled_from(kinds))
        if kind == "none" and len(parts) > 6:
            kind = "slice"
        if kind == "none":
            parts.append(None)
            continue
        if kind == "ellipsis":
            parts.append(Ellipsis)
            ellipsis = True
            axis += draw(st.integers(0, len(shape) - axis))
            continue
        if kind == "slice":
            parts.append(draw(st.slices(n)))
        elif kind == "integer":
            parts.append(draw(st.integers(-n, n - 1)))
        elif kind == "mask":
            parts.append(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool))
        else:  # one length for all index arrays, so that they broadcast
            chosen = draw(st.lists(st.integers(-n, n - 1), min_size=3, max_size=3))
            parts.append({"list": chosen, "tuple": tuple(chosen)}.get(kind, np.array(chosen)))
        axis += 1
        if draw(st.booleans()):
            break
    # a bare tuple would index several axes
    return tuple(parts) if len(parts) != 1 or isinstance(parts[0], tuple) or draw(st.booleans()) else parts[0]
