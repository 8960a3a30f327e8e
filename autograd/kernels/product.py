"""Products of matrices: by BLAS on the CPU, by cuBLAS on a GPU.

CuPy multiplies two matrices as one would wish. But where there are more axes it first copies what is not contiguous,
and what is float16 to float32. Heads of attention are just that: parts of longer rows. cuBLAS itself takes any matrix
whose rows, or columns, are contiguous, and many matrices at a time if they are at even distances. So it is called
directly, and nothing is copied; where it cannot be reached, CuPy multiplies.

float16 is added up in float32. (Where a sum is very long, cuBLAS may add up parts of it and round each to the dtype of
the result. So gradients of weights, whose sums go over all tokens, are asked for in float32.)
"""

from __future__ import annotations

from itertools import product as every
from typing import Any, NamedTuple

import numpy as np

from .. import cuda, modes
from ..backend import Array, array_module, on_device_of
from .total import widened

CUDA_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2}


def product(a: Array, b: Array, out: Array | None = None, scale: float = 1.0, dtype: Any = None) -> Array:
    """scale * a b, over the last two axes; `out`, or `dtype` for a new array, may be wider than a and b."""
    if out is None and dtype is not None and dtype != a.dtype:
        out = array_module(a).empty((*a.shape[:-1], b.shape[-1]), dtype)
    if _for_cublas(a, b):
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if out is None:
            out = array_module(a).empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
        if out.size and a.size and _by_cublas(a, b, out, batch, scale):
            return out
    dtype = a.dtype
    if isinstance(a, np.ndarray) or (out is not None and out.dtype != dtype):
        a, b = widened(a), widened(b)
    if scale != 1:
        a, b = (a * a.dtype.type(scale), b) if a.size < b.size else (a, b * b.dtype.type(scale))
    if isinstance(a, np.ndarray) and out is not None and out.dtype == a.dtype:
        return np.matmul(a, b, out=out)
    result = a @ b
    if out is None and result.dtype == dtype:
        return result
    with np.errstate(over="ignore"):  # as on a GPU: whoever trains in float16 looks for what is infinite
        if out is None:
            return result.astype(dtype)
        out[...] = result
    return out


def _for_cublas(a: Array, b: Array) -> bool:
    if isinstance(a, np.ndarray) or not cuda.compiles():
        return False
    return a.ndim > 1 and b.ndim > 1 and a.dtype == b.dtype and a.dtype.name in CUDA_DATA_TYPES


class Matrix(NamedTuple):
    """A matrix in memory as cuBLAS sees it: its rows follow each other at a distance, or if transposed, its columns."""

    distance: int
    transposed: bool


def _matrix(x: Array) -> Matrix | None:
    """None if neither the rows nor the columns of x are contiguous."""
    rows, columns = x.shape[-2:]
    along_rows, along_columns = (stride // x.itemsize for stride in x.strides[-2:])
    if (along_columns == 1 or columns == 1) and (along_rows >= columns or rows == 1):
        return Matrix(along_rows if rows > 1 else columns, transposed=False)
    if (along_rows == 1 or rows == 1) and (along_columns >= rows or columns == 1):
        return Matrix(along_columns if columns > 1 else rows, transposed=True)
    return None


class Call(NamedTuple):
    """What all products of a batch have in common."""

    sizes: tuple[int, int, int]
    compute: int
    many: int  # of the matrices that cuBLAS multiplies at a time
    factors: np.ndarray  # out = factors[0] a b + factors[1] out

    def do(self, library: Any, flags: tuple[int, int], a: list[int], b: list[int], out: list[int]) -> None:
        """Operands are the address, the type, the distance of their rows, and the step from a matrix to the next."""
        first = self.factors.ctypes.data
        second = first + self.factors.itemsize
        handle, default = cuda.cublas_handle(), library.CUBLAS_GEMM_DEFAULT
        if self.many == 1:
            operands = *a[:3], *b[:3], second, *out[:3]
            library.gemmEx(handle, *flags, *self.sizes, first, *operands, self.compute, default)
        else:
            operands = *a, *b, second, *out
            library.gemmStridedBatchedEx(
                handle, *flags, *self.sizes, first, *operands, self.many, self.compute, default
            )


def _by_cublas(a: Array, b: Array, out: Array, batch: tuple[int, ...], scale: float) -> bool:
    """Whether it could be done.

    cuBLAS stores matrices by columns, so it sees all of ours transposed, and is asked for out^T = b^T a^T.
    """
    library = cuda.cublas()
    on_device_of(a)  # whose device's handle it is to be
    a, b = (x if _matrix(x) else array_module(x).ascontiguousarray(x) for x in (a, b))
    arrays = b, a, out
    matrices = [matrix for x in arrays if (matrix := _matrix(x)) is not None]
    if library is None or len(matrices) < 3 or matrices[2].transposed:
        return False
    counts, steps = _merged(batch, [_steps(x, batch) for x in arrays])
    # one axis of the batch goes to cuBLAS, the longest; this loop goes over the others, if there are any
    longest = max(range(len(counts)), key=counts.__getitem__)
    loops = [range(1 if axis == longest else count) for axis, count in enumerate(counts)]
    kind = np.float64 if a.dtype == np.float64 else np.float32
    sizes = out.shape[-1], out.shape[-2], a.shape[-1]
    call = Call(sizes, _compute(library, a.dtype), counts[longest], np.array([scale, 0], kind))
    flags = int(matrices[0].transposed), int(matrices[1].transposed)
    for place in every(*loops):
        operands = []
        for x, matrix, own in zip(arrays, matrices, steps, strict=True):
            address = x.data.ptr + x.itemsize * sum(map(int.__mul__, place, own))
            operands.append([address, CUDA_DATA_TYPES[x.dtype.name], matrix.distance, own[longest]])
        call.do(library, flags, *operands)
    return True


def _compute(library: Any, dtype: np.dtype) -> int:
    """The kind of arithmetic."""
    if dtype == np.float64:
        return library.CUBLAS_COMPUTE_64F
    if dtype == np.float32 and modes.current().products == "tf32":
        return library.CUBLAS_COMPUTE_32F_FAST_TF32
    return library.CUBLAS_COMPUTE_32F


def _steps(x: Array, batch: tuple[int, ...]) -> list[int]:
    """How many values lie between neighbours along each axis of the batch; none where x is the same for all."""
    own = x.shape[:-2]
    steps = [stride // x.itemsize if size > 1 else 0 for size, stride in zip(own, x.strides[:-2], strict=True)]
    return [0] * (len(batch) - len(own)) + steps


def _merged(batch: tuple[int, ...], steps: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Axes of the batch that can be walked as one are made one; those of length 1 go. At least one is left."""
    axes = [(count, *own) for count, *own in zip(batch, *steps, strict=True) if count > 1] or [(1, 0, 0, 0)]
    merged = axes[:1]
    for axis in axes[1:]:
        before, count = merged[-1], axis[0]
        if all(outer == inner * count for outer, inner in zip(before[1:], axis[1:], strict=True)):
            merged[-1] = (before[0] * count, *axis[1:])
        else:
            merged.append(axis)
    counts, *separate = (list(column) for column in zip(*merged, strict=True))
    return counts, separate
