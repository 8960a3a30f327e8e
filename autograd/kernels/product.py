"""Matrix products, scale * a b over the last two axes: by BLAS on the CPU, by cuBLAS on a GPU.

CuPy does well with two axes. With more, it first copies operands that are not contiguous, and casts float16 to float32.
Attention heads have four, and are parts of longer rows. So cuBLAS is called directly (`gemm`), without a copy. If it is
not available, CuPy multiplies.

float16 accumulates in float32. (If a sum is very long, cuBLAS may split it and round the partial sums to the dtype of
the result. Gradients of weights, which are sums over all tokens, are therefore asked for in float32.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import Array, array_module
from .gemm import gemm
from .sums import widened


def _product_numpy(a: Array, b: Array, out: Array | None, scale: float) -> Array:
    dtype = a.dtype
    if dtype == np.float16 and (isinstance(a, np.ndarray) or (out is not None and out.dtype != dtype)):
        a, b = widened(a), widened(b)
    if scale != 1:
        a, b = (a * a.dtype.type(scale), b) if a.size < b.size else (a, b * b.dtype.type(scale))
    if isinstance(a, np.ndarray) and out is not None and out.dtype == a.dtype:
        return np.matmul(a, b, out=out)
    result = a @ b
    if out is None and result.dtype == dtype:
        return result
    with np.errstate(over="ignore"):  # silent as on a GPU: loss scaling looks for infinities
        if out is None:
            return result.astype(dtype)
        out[...] = result
    return out


def _empty(a: Array, b: Array, dtype: Any) -> Array:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return array_module(a).empty((*batch, *a.shape[-2:-1], b.shape[-1]), dtype)


def product(a: Array, b: Array, out: Array | None = None, scale: float = 1.0, dtype: Any = None) -> Array:
    """scale * a b, over the last two axes; `out`, or `dtype` for a new array, may be wider than a and b."""
    if out is None and dtype is not None and dtype != a.dtype:
        out = _empty(a, b, dtype)
    if not isinstance(a, np.ndarray) and (result := gemm(a, b, out, scale)) is not None:
        return result
    return _product_numpy(a, b, out, scale)
