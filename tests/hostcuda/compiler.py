"""Kernels: compiled by NVRTC to see that a GPU would take them, and by g++ to be run.

NVRTC is the compiler of CUDA and needs no GPU. It is asked about every source for every architecture of
HOSTCUDA_ARCH ("80" by default, or several: "75,80,90,120"); what it makes is thrown away. Both compilers run, because
each takes what the other refuses. g++ works on the same source behind shim.h, with two changes: pointers in place of
arrays of shared memory whose size is not known, and an entry point for each kernel.
"""

from __future__ import annotations

import ctypes
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import gxx
from .unsupported import HostCudaError, refuse

ARCHITECTURES = [int(text) for text in os.environ.get("HOSTCUDA_ARCH", "80").split(",")]  # the device has the first
HEADERS = """#include "shim.h"
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
#include <cupy/float16.cuh>
"""
_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
KERNEL = re.compile(rf"(>\s*)?__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(")
UNSIZED_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\([^)]*\)\s*)?([\w\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
BARRIER = re.compile(r"__sync|__shfl|__ballot|__any|__all")

_libraries: list[ctypes.PyDLL] = []


def install() -> None:
    from cupy.cuda import compiler

    compiler._compile_module_with_cache = compile_module


def compile_module(
    source: str,
    options: tuple[str, ...] = (),
    *,
    arch: str | None = None,
    extra_source: str | None = None,
    backend: str = "nvrtc",
    enable_cooperative_groups: bool = False,
    name_expressions: Any = None,
    log_stream: Any = None,
    jitify: bool = False,
    to_ltoir: bool = False,
) -> Any:
    """In place of CuPy's function of the same parameters."""
    from cupy.cuda import function

    for asked, what in (
        (backend != "nvrtc", f"kernels compiled by {backend}"),
        (enable_cooperative_groups, "cooperative groups over the grid"),
        (name_expressions, "templates of kernels (name_expressions)"),
        (jitify or "-DCUPY_USE_JITIFY" in options, "jitify"),
        (to_ltoir, "link-time optimisation"),
    ):
        if asked:
            refuse(what)
    with ThreadPoolExecutor(1) as beside:  # the two compilers at the same time
        accepted = beside.submit(ask_nvrtc, source, options)
        try:
            library = compile_for_host(source, options)
        finally:
            accepted.result()  # NVRTC's word comes first: its errors are the ones that users would see
    library.source = source
    _libraries.append(library)
    module = function.Module()
    module.load(f"hostcuda {len(_libraries) - 1}".encode())
    return module


def library_of(image: bytes) -> ctypes.PyDLL:
    """Return what was compiled, from the "image" that CuPy hands to the driver."""
    word, _, number = image.partition(b" ")
    return _libraries[int(number)] if word == b"hostcuda" else refuse("a kernel that was compiled elsewhere")


def pointers_of(library: ctypes.PyDLL, name: str) -> list[int]:
    """Parameters of a kernel that are plain pointers. Arrays that CuPy passes as a struct it has checked itself."""
    match = re.search(rf"__global__[^(;{{]*(?:\([^)]*\)[^(;{{]*)?\b{name}\s*\(([^)]*)\)", library.source)
    parameters = re.sub(r"<[^<>]*>", "", match[1]).split(",") if match is not None else []
    return [i for i, text in enumerate(parameters) if "*" in text]


def ask_nvrtc(source: str, options: tuple[str, ...]) -> None:
    """Raises CuPy's CompileException if NVRTC refuses the source for any architecture."""
    from cupy.cuda import compiler

    options = (*options, "-ftz=true")  # as CuPy does
    for architecture in ARCHITECTURES:
        key = gxx.digest(source, options, architecture, compiler._get_nvrtc_version())

        def ask(mark: Path, architecture: int = architecture) -> None:
            compiler._compile_using_nvrtc_no_warning(source, options, str(architecture))
            mark.touch()

        gxx.made_once(gxx.folder() / f"{key}.nvrtc", ask)


def compile_for_host(source: str, options: tuple[str, ...]) -> ctypes.PyDLL:
    names = [name for template, name in KERNEL.findall(source) if not template]
    if not names:
        raise HostCudaError("there is no kernel in this source, or only templates")
    has_barriers = bool(BARRIER.search(source))
    any_grid = "CUPY_FOR" in source  # CuPy's own loop, which strides over the grid
    body = UNSIZED_SHARED.sub(r"\1* \2 = (\1*)hostcuda::dynamic_shared;", source)
    exports = [f"HOSTCUDA_EXPORT({name}, {has_barriers:d}, {any_grid:d})" for name in dict.fromkeys(names)]
    definitions = [option for option in options if option.startswith(("-D", "-U"))]
    text = "\n".join(['#include "kernel.h"', body, *exports, ""])
    return gxx.library(text, [*gxx.kernel_flags(HEADERS), *definitions], f"the kernel {names[0]}")
