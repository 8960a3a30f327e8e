"""Registers of the kernels that keep rows in them, by NVRTC for real architectures.

Nothing spills to memory but with 16 heads and 784 keys, those of CaiT-M48 at 448 pixels.
"""

import re

import pytest

from autograd.kernels import fused_heads, launch
from tests.hostcuda import gxx
from tests.hostcuda.compiler import ARCHITECTURES

pytestmark = pytest.mark.hostcuda
SIZES = [(4, 196), (8, 196), (16, 196), (4, 576), (4, 784), (8, 784), (16, 784)]  # heads and keys
SPILLED = {"mix_softmax_mix": 80, "mix_softmax_mix_grad": 800}  # bytes, with 16 heads and 784 keys


def registers(kernel, architecture):
    """Of each thread, and the bytes that spill."""
    from cupy_backends.cuda.libs import nvrtc

    options = [f"-I{gxx.cuda_include()}", f"-arch=sm_{architecture}", "--std=c++17", "-ftz=true",
               "--ptxas-options=-v"]  # fmt: skip
    program = nvrtc.createProgram(kernel.code, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
    finally:
        log = nvrtc.getProgramLog(program)
        nvrtc.destroyProgram(program)
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
    return int(re.search(r"Used (\d+) registers", log)[1]), spilled


@pytest.mark.parametrize("name, most", [("mix_softmax_mix", 144), ("mix_softmax_mix_grad", 255)])
@pytest.mark.parametrize("heads, keys", SIZES)
def test_fused_heads(cp, name, most, heads, keys):
    kernel, warps = fused_heads._compiled(name, "float16", heads, keys)
    for architecture in ARCHITECTURES:
        used, spilled = registers(kernel, architecture)
        print(f"\n{name}, {heads} heads, {keys} keys, {warps} warps, sm_{architecture}: {used} registers", end="")
        assert used <= most and spilled <= (SPILLED[name] if (heads, keys) == (16, 784) else 0)
        assert used * max(launch.THREADS, 32 * warps) <= 65536  # or the block does not fit
