"""cuBLAS, or as much of it as CuPy uses for products of real matrices, in NumPy.

Matrices are stored by columns, as in Fortran; `ld` is the distance of a column from the next. Products of float16 are
added up in float32 and rounded once, as tensor cores do.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import re
import subprocess
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import capture, counters, memory
from .unsupported import put_module, refuse, refusing

VERSION = 130000
NAME = "cupy_backends.cuda.libs.cublas"
CONSTANTS = {
    "CUBLAS_OP_N": 0, "CUBLAS_OP_T": 1, "CUBLAS_OP_C": 2, "CUBLAS_DEFAULT_MATH": 0, "CUBLAS_TENSOR_OP_MATH": 1,
    "CUBLAS_POINTER_MODE_HOST": 0, "CUBLAS_POINTER_MODE_DEVICE": 1, "CUBLAS_SIDE_LEFT": 0, "CUBLAS_SIDE_RIGHT": 1,
    "CUBLAS_FILL_MODE_LOWER": 0, "CUBLAS_FILL_MODE_UPPER": 1, "CUBLAS_DIAG_NON_UNIT": 0, "CUBLAS_DIAG_UNIT": 1,
    "CUBLAS_GEMM_DFALT": -1, "CUBLAS_GEMM_DFALT_TENSOR_OP": 99, "CUBLAS_GEMM_DEFAULT": -1,
    "CUBLAS_GEMM_DEFAULT_TENSOR_OP": 99, "CUBLAS_COMPUTE_16F": 64, "CUBLAS_COMPUTE_16F_PEDANTIC": 65,
    "CUBLAS_COMPUTE_32F": 68, "CUBLAS_COMPUTE_32F_PEDANTIC": 69, "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_COMPUTE_64F_PEDANTIC": 71, "CUBLAS_COMPUTE_32I": 72, "CUBLAS_COMPUTE_32I_PEDANTIC": 73,
    "CUBLAS_COMPUTE_32F_FAST_16F": 74, "CUBLAS_COMPUTE_32F_FAST_16BF": 75, "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
}  # fmt: skip
DTYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16)}  # cudaDataType
# The kind of arithmetic, by its number: cublasComputeType, or the cudaDataType that older functions take.
COMPUTE = {
    0: "32F", 1: "64F", 68: "32F", 69: "32F_PEDANTIC", 70: "64F", 71: "64F_PEDANTIC", 77: "32F_FAST_TF32",
}  # fmt: skip


# Which types a, b and c may have, by the kind of arithmetic.
MIXED = {
    "32F": {("float32",) * 3, ("float16",) * 3, ("float16", "float16", "float32")},
    "64F": {("float64",) * 3},
}


class Operand(NamedTuple):
    address: int
    dtype: int  # cudaDataType
    ld: int
    stride: int = 0  # from one matrix of a batch to the next

    def array(self, rows: int, columns: int, batch: int = 1) -> np.ndarray:
        """(batch, rows, columns), a view of the memory."""
        memory.check_here(self.address, "cuBLAS")
        dtype = DTYPES.get(self.dtype) or refuse(f"cuBLAS for cudaDataType {self.dtype}")
        count = (batch - 1) * self.stride + (columns - 1) * self.ld + rows
        values = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(self.address), dtype)
        size = dtype.itemsize
        strides = (self.stride * size, size, self.ld * size)
        return np.lib.stride_tricks.as_strided(values, (batch, rows, columns), strides)


class Product(NamedTuple):
    """C = alpha op(A) op(B) + beta C, with op(A) (m, k) and op(B) (k, n); op transposes or does nothing."""

    transpose_a: int
    transpose_b: int
    m: int
    n: int
    k: int
    alpha: int  # addresses
    beta: int
    compute: int

    def run(
        self, function: str, a: Operand, b: Operand, c: Operand, batch: int, log: bool = True, stream: int | None = None
    ) -> None:  # fmt: skip
        """`stream` is that of a handle of our own; CuPy's bindings are refused while any stream captures."""
        kind = COMPUTE.get(self.compute) or refuse(f"cuBLAS with compute type {self.compute}")
        self.check(kind, a, b, c, batch)
        wide = np.dtype(np.float64 if kind.startswith("64F") else np.float32)
        # read now, as cuBLAS does: a graph keeps the values
        factors = [np.frombuffer((ctypes.c_char * wide.itemsize).from_address(p), wide)[0] for p in self[5:7]]
        if stream is None:
            if capture.is_anywhere():
                raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        elif capture.keep(lambda: self.multiply(function, a, b, c, batch, log, wide, *factors), stream, "cuBLAS"):
            return
        self.multiply(function, a, b, c, batch, log, wide, *factors)

    def multiply(
        self, function: str, a: Operand, b: Operand, c: Operand, batch: int, log: bool, wide: np.dtype, alpha: Any,
        beta: Any,
    ) -> None:  # fmt: skip
        left = a.array(*((self.k, self.m) if self.transpose_a else (self.m, self.k)), batch).astype(wide)
        right = b.array(*((self.n, self.k) if self.transpose_b else (self.k, self.n)), batch).astype(wide)
        result = c.array(self.m, self.n, batch)
        if log:
            self.log(function, batch, left=DTYPES[a.dtype], result=result.dtype)
        left = left.swapaxes(1, 2) if self.transpose_a else left
        right = right.swapaxes(1, 2) if self.transpose_b else right
        with np.errstate(all="ignore"):  # a GPU overflows in silence
            product = alpha * (left @ right)
            result[...] = product if beta == 0 else product + beta * result

    def check(self, kind: str, a: Operand, b: Operand, c: Operand, batch: int) -> None:
        """Refuse what cuBLAS would refuse: rows that overlap, results on top of each other, types that do not mix."""
        least = self.k if self.transpose_a else self.m, self.n if self.transpose_b else self.k, self.m
        for name, operand, rows in zip("abc", (a, b, c), least, strict=True):
            if operand.ld < max(1, rows):
                raise ValueError(f"cuBLAS: the leading dimension {operand.ld} of {name} is less than {rows}")
        if batch > 1 and c.stride == 0:
            raise ValueError("cuBLAS: all products of a batch would be written to one place")
        names = tuple(DTYPES[x.dtype].name for x in (a, b, c) if x.dtype in DTYPES)
        if len(names) == 3 and names not in MIXED[kind[:3]]:
            raise ValueError(f"cuBLAS does not multiply {names[0]} and {names[1]} to {names[2]} with {kind}")

    def log(self, function: str, batch: int, left: np.dtype, result: np.dtype) -> None:
        for count in counters.active:
            count.gemms.append(
                counters.Gemm(function, batch, self.m, self.n, self.k, left.name, result.name, COMPUTE[self.compute])
            )


def _gemm_ex(
    _, ta, tb, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, compute, algo, stream=None
) -> None:  # fmt: skip
    operands = Operand(a, type_a, lda), Operand(b, type_b, ldb), Operand(c, type_c, ldc)
    Product(ta, tb, m, n, k, alpha, beta, compute).run("gemmEx", *operands, 1, stream=stream)


def _gemm_strided_batched_ex(
    _, ta, tb, m, n, k, alpha, a, type_a, lda, step_a, b, type_b, ldb, step_b, beta, c, type_c, ldc, step_c,
    batch, compute, algo, stream=None,
) -> None:  # fmt: skip
    operands = Operand(a, type_a, lda, step_a), Operand(b, type_b, ldb, step_b), Operand(c, type_c, ldc, step_c)
    Product(ta, tb, m, n, k, alpha, beta, compute).run("gemmStridedBatchedEx", *operands, batch, stream=stream)


def _gemm_batched(function: str, kind: int) -> Callable[..., None]:
    def gemm(_, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch) -> None:
        """a, b and c are arrays of pointers to matrices."""
        product = Product(ta, tb, m, n, k, alpha, beta, kind)
        pointers = (np.frombuffer((ctypes.c_char * (8 * batch)).from_address(p), np.uint64).tolist() for p in (a, b, c))
        for i, (own_a, own_b, own_c) in enumerate(zip(*pointers, strict=True)):
            operands = Operand(own_a, kind, lda), Operand(own_b, kind, ldb), Operand(own_c, kind, ldc)
            product.run(function, *operands, 1, log=False)
            if i == 0:
                product.log(function, batch, DTYPES[kind], DTYPES[kind])

    return gemm


class Library:
    """libcublas itself, as ctypes finds it: a handle has the stream that it was given."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}

    def cublasCreate_v2(self, handle: Any) -> int:  # noqa: N802
        handle._obj.value = len(self.streams) + 1
        self.streams[handle._obj.value] = 0
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: int) -> int:  # noqa: N802
        self.streams[handle.value] = stream
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, address: int, size: int) -> int:  # noqa: N802
        memory.check_here(address, "cuBLAS")
        return 0

    def cublasGemmEx(self, handle: Any, *arguments: int) -> int:  # noqa: N802
        _gemm_ex(handle, *arguments, stream=self.streams[handle.value])
        return 0

    def cublasGemmStridedBatchedEx(self, handle: Any, *arguments: int) -> int:  # noqa: N802
        _gemm_strided_batched_ex(handle, *arguments, stream=self.streams[handle.value])
        return 0


@cache
def linked() -> frozenset[str]:
    """The functions of cuBLAS that CuPy's binding is linked with."""
    parent = importlib.util.find_spec("cupy_backends")
    assert parent is not None and parent.submodule_search_locations
    binding = next(Path(parent.submodule_search_locations[0], "cuda", "libs").glob("cublas.*.so"))
    symbols = subprocess.run(["nm", "-D", "--undefined-only", binding], capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"\bcublas[A-Z]\w+", symbols.stdout))


@cache
def offered() -> frozenset[str]:
    """The names of these functions in the binding: sgemm for cublasSgemm_v2."""
    names = (name.removeprefix("cublas").removesuffix("_v2") for name in linked())
    return frozenset(name[0].lower() + name[1:] for name in names)


class Cublas(types.ModuleType):
    """The functions that were needed so far. The others of the binding raise when they are called."""

    available = True
    CUBLASError = type("CUBLASError", (RuntimeError,), {})

    def __getattr__(self, name: str) -> Any:
        if name not in offered():
            raise AttributeError(name)
        return refusing(f"cuBLAS, {name}")


def install() -> None:
    handles = itertools.count(1)
    module = Cublas(NAME)
    functions = {
        "create": lambda: next(handles),
        "destroy": lambda handle: None,
        "setStream": lambda handle, stream: None,
        "setPointerMode": lambda handle, mode: None,
        "getPointerMode": lambda handle: CONSTANTS["CUBLAS_POINTER_MODE_HOST"],
        "setMathMode": lambda handle, mode: None,
        "getMathMode": lambda handle: CONSTANTS["CUBLAS_DEFAULT_MATH"],
        "getVersion": lambda handle: VERSION,
        "gemmEx": _gemm_ex,
        "gemmStridedBatchedEx": _gemm_strided_batched_ex,
        "sgemmBatched": _gemm_batched("sgemmBatched", 0),
        "dgemmBatched": _gemm_batched("dgemmBatched", 1),
    }
    vars(module).update(CONSTANTS | functions)
    put_module(module)
    import cupy_backends.cuda.libs

    cupy_backends.cuda.libs.cublas = module
    from autograd import cublas

    cublas.load, cublas.WORKSPACE = Library, 256  # it needs none
