"""g++ with a cache on disk: the same source with the same flags is compiled once.

The key is a hash of everything that matters: source, flags, the shim, the version of g++ and that of CuPy. The cache is
in the user's cache directory, or where HOSTCUDA_CACHE says; it can be removed at any time.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .unsupported import HostCudaError

HERE = Path(__file__).parent
FLAGS = [
    "-std=c++17", "-O1", "-fPIC", "-w",
    "-fpermissive",  # NVRTC has been asked about the source; here it only has to run
    "-ffp-contract=off",  # the same roundings on every CPU
]  # fmt: skip


@cache
def folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("HOSTCUDA_CACHE") or Path(caches) / "minicait" / "hostcuda")
    path.mkdir(parents=True, exist_ok=True)
    return path


@cache
def cuda_include() -> Path | None:
    """The headers of CUDA: those of CUDA_PATH, or of the wheels from NVIDIA."""
    candidates = []
    if "CUDA_PATH" in os.environ:
        candidates.append(Path(os.environ["CUDA_PATH"]) / "include")
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(path.parent for path in Path(place).glob("*/include/cuda_fp16.h"))
    return next((path for path in candidates if (path / "cuda_fp16.h").is_file()), None)


@cache
def cupy_include() -> Path:
    spec = importlib.util.find_spec("cupy")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "_core" / "include"


@cache
def _include_flags() -> list[str]:
    cuda = cuda_include()
    assert cuda is not None
    return [f"-I{path}" for path in (HERE, cupy_include(), cuda, cuda / "cccl")]


@cache
def _surroundings() -> str:
    """All that a result depends on beside the source and the flags."""
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    shim = [(HERE / name).read_text() for name in ("shim.h", "shim_warps.h", "shim_functions.h")]
    cupy = [d.version for d in importlib.metadata.distributions() if d.name.startswith("cupy-cuda")]
    return repr((version, shim, sorted(cupy)))


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, (*parts, _surroundings()))).encode()).hexdigest()[:32]


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, which `make` writes unless it is there. Other processes see it whole or not at all."""
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as scratch:
            make(Path(scratch) / path.name)
            (Path(scratch) / path.name).replace(path)
    return path


def run(arguments: list[str], what: str) -> None:
    result = subprocess.run(["g++", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise HostCudaError(f"g++ cannot compile {what}:\n{result.stderr[:4000]}")


def library(source: str, flags: list[str], what: str) -> ctypes.PyDLL:
    """The source as a shared library, loaded. Python's lock is held while its functions run."""

    def make(target: Path) -> None:
        cpp = target.with_suffix(".cpp")
        cpp.write_text(source)
        # a kernel may have the name of a function of the C library, and must be called all the same
        run([*FLAGS, *flags, "-shared", "-Wl,-Bsymbolic-functions", str(cpp), "-o", str(target)], what)

    return ctypes.PyDLL(str(made_once(folder() / f"{digest(source, FLAGS, flags)}.so", make)))


def kernel_flags(headers: str) -> list[str]:
    """Flags with which `#include "kernel.h"` finds these headers, parsed once for all kernels."""
    includes = _include_flags()
    place = folder() / f"headers-{digest(headers, FLAGS, includes)}"
    place.mkdir(exist_ok=True)
    header = made_once(place / "kernel.h", lambda target: target.write_text(headers) and None)
    arguments = [*FLAGS, *includes, "-x", "c++-header", str(header), "-o"]
    made_once(place / "kernel.h.gch", lambda target: run([*arguments, str(target)], "the headers of CuPy"))
    return [f"-I{place}", *includes]
