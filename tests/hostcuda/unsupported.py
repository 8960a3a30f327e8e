"""Calls that cannot be run here raise, and say so. A wrong number would be worse than none.

These parts of CuPy call code that was compiled for a GPU when CuPy was built. Without a GPU some of them fail by
themselves, and some return memory as they found it.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

# Modules of CuPy, and what to call them in an error.
MODULES = {
    "cupy.cuda.thrust": "Thrust (sort, argsort, lexsort, unique)",
    "cupy.cuda.cufft": "cuFFT",
    "cupy_backends.cuda.libs.curand": "cuRAND (cupy.random)",
    "cupy_backends.cuda.libs.cusolver": "cuSOLVER (cupy.linalg)",
    "cupy_backends.cuda.libs.cusparse": "cuSPARSE",
    "cupy_backends.cuda.libs.cutensor": "cuTENSOR",
    "cupy_backends.cuda.libs.nccl": "NCCL",
}
# Names in cupy.random whose kernels are precompiled.
GENERATORS = ["BitGenerator", "Generator", "MRG32k3a", "Philox4x3210", "XORWOW", "default_rng"]


class HostCudaError(RuntimeError):
    """Something that only a GPU can do was asked for, or a kernel did what a GPU would not survive."""


def refuse(what: str) -> NoReturn:
    raise HostCudaError(f"hostcuda cannot run {what}: it needs a GPU")


class Unsupported(types.ModuleType):
    """A module whose every name can be asked for and none can be called."""

    available = True  # CuPy would call the installation incomplete otherwise

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, f"{what}, which hostcuda cannot run")
        self.what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions about a module
            raise AttributeError(name)
        return refusing(f"{self.what}, {name}")


def refusing(what: str) -> Any:
    return lambda *args, **kwargs: refuse(what)


def put_module(module: types.ModuleType) -> None:
    """Let `import` find this module, in every way of writing it."""
    sys.modules[module.__name__] = module
    parent, _, name = module.__name__.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], name, module)


def before_import() -> None:
    for name, what in MODULES.items():
        put_module(Unsupported(name, what))


def after_import() -> None:
    import cupy

    cub = cupy.cuda.cub  # other modules of CuPy cannot be imported without it, so only its functions are replaced
    for name in [name for name, value in vars(cub).items() if callable(value)]:
        setattr(cub, name, refusing(f"CUB, {name}"))
    for path in MODULES:
        setattr(cupy.cuda, path.rpartition(".")[2], sys.modules[path])
    for name in GENERATORS:
        setattr(cupy.random, name, refusing(f"cupy.random.{name}"))
    cupy.random._generator.FeistelBijection = refusing("cupy.random's permutations")
