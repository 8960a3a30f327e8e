"""A stand-in for CuPy in host memory, at least as strict about its arguments.

It shows on any machine that no operation assumes NumPy: mixing a NumPy array with one of these raises, and so does a
function or keyword that CuPy lacks. It says nothing about CUDA kernels.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

KEYWORDS = {"axis", "keepdims", "dtype", "out", "copy", "where", "optimize"}
FUNCTIONS = [
    "abs", "arange", "ascontiguousarray", "broadcast_to", "clip", "concatenate", "copysign", "copyto", "cos", "divide",
    "einsum", "empty", "empty_like", "exp", "exp2", "expm1", "flip", "full", "isinf", "isnan", "isneginf", "log",
    "log1p", "matmul", "maximum", "minimum", "multiply", "ones_like", "reciprocal", "sign", "sin", "split", "sqrt",
    "subtract", "take_along_axis", "tanh", "tril", "vdot", "where", "zeros", "zeros_like",
]  # fmt: skip
METHODS = [
    "all", "any", "argmax", "astype", "copy", "cumsum", "max", "mean", "min", "reshape", "sum", "swapaxes", "transpose",
    "view",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "truediv", "pow", "matmul", "lt", "le", "gt", "ge", "eq", "ne", "and", "or"]


class ndarray:  # noqa: N801
    """A NumPy array, accessible only through get()."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray, base: Any = None) -> None:
        self._array = array
        self.base = base

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    strides = property(lambda self: self._array.strides)
    T = property(lambda self: _wrap(self._array.T))
    device = property(lambda self: types.SimpleNamespace(id=0))

    def get(self) -> np.ndarray:
        return self._array.copy()

    def item(self) -> Any:
        return self._array.item()

    def __bool__(self) -> bool:
        return bool(self._array)

    def __float__(self) -> float:
        return float(self._array)

    def __len__(self) -> int:
        return len(self._array)

    def __neg__(self) -> ndarray:
        return _wrap(-self._array)

    def __invert__(self) -> ndarray:
        return _wrap(~self._array)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __getitem__(self, index: Any) -> ndarray:
        return _wrap(self._array[_unwrap(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[_unwrap(index)] = _unwrap(value)


def _unwrap(x: Any) -> Any:
    if isinstance(x, ndarray):
        return x._array
    if isinstance(x, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return type(x)(_unwrap(item) for item in x) if type(x) in (list, tuple) else x


def _wrap(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return ndarray(x, base=x.base)
    if isinstance(x, list):
        return [_wrap(item) for item in x]
    return ndarray(np.asarray(x)) if isinstance(x, np.generic) else x


def _strict(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if unknown := set(kwargs) - KEYWORDS:
            raise TypeError(f"unexpected keyword {unknown}")
        out = kwargs.get("out")
        result = function(*_unwrap(args), **{key: _unwrap(value) for key, value in kwargs.items()})
        return out if out is not None else _wrap(result)

    return call


for _name in METHODS:
    setattr(ndarray, _name, _strict(lambda self, *args, _name=_name, **kw: getattr(self, _name)(*args, **kw)))
for _name in BINARY:
    _function = getattr(operator, _name, None) or getattr(operator, f"{_name}_")
    setattr(ndarray, f"__{_name}__", _strict(_function))
    setattr(ndarray, f"__r{_name}__", _strict(lambda self, other, _function=_function: _function(other, self)))


def _in_place(function: Any) -> Any:
    def call(self: ndarray, other: Any) -> ndarray:
        function(self._array, _unwrap(other))
        return self

    return call


for _name in ("iadd", "isub", "imul", "itruediv", "ior"):
    setattr(ndarray, f"__{_name}__", _in_place(getattr(operator, _name)))


class _Device:
    def __init__(self, index: int | None) -> None:
        assert index in (None, 0)

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


@contextmanager
def installed(monkeypatch: Any) -> Iterator[types.ModuleType]:
    """Install the stand-in as `cupy` inside this block."""
    from autograd import cuda

    cupy = types.ModuleType("cupy")
    for name in FUNCTIONS:
        setattr(cupy, name, _strict(getattr(np, name)))
    tricks = types.SimpleNamespace(as_strided=_strict(np.lib.stride_tricks.as_strided))
    cupy.lib = types.SimpleNamespace(stride_tricks=tricks)
    cupy.ndarray = ndarray
    cupy.array = lambda x: ndarray(np.array(x._array if isinstance(x, ndarray) else x))
    cupy.add = _strict(np.add)
    cupy.add.at = _strict(np.add.at)
    versions = {"driverGetVersion": lambda: 13000, "runtimeGetVersion": lambda: 13020}
    runtime = types.SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 1, **versions)
    cupy.cuda = types.SimpleNamespace(is_available=lambda: True, Device=_Device, runtime=runtime)
    special = types.ModuleType("cupyx.scipy.special")
    exact = np.frompyfunc(__import__("math").erf, 1, 1)
    special.erf = lambda x: ndarray(np.asarray(exact(x._array), dtype=np.float64))
    with monkeypatch.context() as patch:
        for module in (cupy, types.ModuleType("cupyx"), types.ModuleType("cupyx.scipy"), special):
            patch.setitem(sys.modules, module.__name__, module)
        cuda._usable.clear()
        yield cupy
    cuda._usable.clear()
