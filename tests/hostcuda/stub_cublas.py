"""CuPy's real cuBLAS binding on a library that prints what it gets: the C arguments of our products.

    python -m tests.hostcuda.stub_cublas
    python -m tests.hostcuda.stub_cublas --graph    # as in a CUDA graph, where we call the library ourselves

`blas` takes the place of the binding, so it cannot show that the binding passes arguments on as we believe. Here the
binding is CuPy's compiled one, over a null device. The first line of its output has the names
of the binding. Then, for each product, a line says what is multiplied, and those that follow, from the stub, how.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from . import blas, gxx
from .null import NullDevice

SONAME = "libcublas.so.13"
SOURCE = Path(__file__).with_suffix(".cpp")


def build() -> Path:
    """The stub, with every function that the binding is linked with."""
    source = SOURCE.read_text()
    others = sorted(blas.linked() - {*re.findall(r"int (cublas\w+)\(", source)})
    source += "".join(f'extern "C" int {name}() {{ return NOT_SUPPORTED; }}\n' for name in others)

    def make(target: Path) -> None:
        cpp, versions = target.with_suffix(".cpp"), target.with_suffix(".map")
        cpp.write_text(source)
        versions.write_text(f"{SONAME} {{ *; }};\n")
        flags = [f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={versions}"]
        gxx.run([*gxx.FLAGS, "-shared", *flags, str(cpp), "-o", str(target)], "the stub of cuBLAS")

    return gxx.made_once(gxx.folder() / f"cublas-{gxx.digest(source)}.so", make)


class StubDevice(NullDevice):
    """A null device with CuPy's real binding, which finds the stub loaded under the name of cuBLAS."""

    def install_blas(self) -> None:
        ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)
        self.binding = importlib.import_module(blas.NAME)


def products(cp: Any) -> list[tuple[str, str, Any, Any, Any, float]]:
    """Name, precision, a, b, out and scale: products of the layouts that models have."""
    tokens, width, heads, c = 6, 8, 2, 4
    x, g, weight = (cp.empty(shape, "float16") for shape in ((12, width), (12, 5), (5, width)))
    qkv = cp.empty((3, 3, heads, tokens, c), "float16")  # q, k and v; images; heads; tokens; and values of each
    side_by_side = cp.empty((3, tokens, 3, heads, c), "float32").transpose(2, 0, 3, 1, 4)  # as views of tokens
    maps = cp.empty((3, heads, tokens, 8), "float16")[..., :tokens]  # padded rows
    wide, double = cp.empty((4, 7), "float32"), cp.empty((4, 7), "float64")
    half, single, dual = "float16", "float32", "float64"
    return [
        ("plain", half, x, cp.empty((width, 5), half), None, 1.0),
        ("linear layer", half, x, weight.T, None, 1.0),
        ("gradient of its input", half, g, weight, None, 1.0),
        ("gradient of its weight, in float32", half, g.T, x, cp.empty((5, width), single), 1.0),
        ("scores of all heads", half, qkv[0], qkv[1].swapaxes(-1, -2), maps, 0.5),
        ("values of all heads", half, maps, qkv[2], None, 1.0),
        ("gradient of the values", half, maps.swapaxes(-1, -2), qkv[0], qkv[2], 1.0),
        ("heads side by side", single, side_by_side[0], side_by_side[1].swapaxes(-1, -2), None, 0.25),
        ("one matrix for all images", half, cp.empty((5, tokens), half), cp.empty((3, tokens, 7), half), None, 1.0),
        ("a single row", half, x[:1], weight.T, None, 1.0),
        ("float32", single, wide, wide.T, None, 1.0),
        ("tf32", "tf32", wide, wide.T, None, 1.0),
        ("float64", dual, double.T, double, None, 1 / 3),
    ]


def main() -> None:
    names = vars(StubDevice().binding)
    print(json.dumps({name: value if type(value) is int else None for name, value in names.items()}), flush=True)
    import cupy

    from autograd import cublas, graph, modes
    from autograd.kernels.gemm import gemm

    capture = None
    if "--graph" in sys.argv:
        capture = graph.Capture(cublas.StreamBlas())
        print(json.dumps({"stream": capture.blas.stream.ptr}), flush=True)

    def place(x: Any) -> dict[str, Any]:
        return {"address": x.data.ptr, "shape": x.shape, "strides": x.strides, "dtype": x.dtype.name}

    for name, precision, a, b, out, scale in products(cupy):
        if out is None:
            out = cupy.empty((*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
        arrays = {"a": place(a), "b": place(b), "out": place(out)}
        print(json.dumps({"product": name, "precision": precision, "scale": scale, **arrays}), flush=True)
        with modes.changed(products=precision if precision == "tf32" else "as given", capture=capture):
            assert gemm(a, b, out, scale) is out


if __name__ == "__main__":
    main()
