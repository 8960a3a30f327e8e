"""The C arguments of our cuBLAS calls, through CuPy's real binding: what `cublasGemmEx` would get on a GPU.

cuBLAS computes C = alpha op(A) op(B) + beta C, on matrices by columns: number (i, j) of a matrix is at its address plus
i + j * ld values. So the arguments say where each value that it reads and writes is. Those must be the places of the
values in our arrays, whose shapes and strides say the same in another way.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.hostcuda import blas

pytestmark = pytest.mark.hostcuda
ROOT = Path(__file__).parents[2]
# As in library_types.h and cublas_api.h of CUDA: CUDA_R_16F and so on; CUBLAS_COMPUTE_32F and so on.
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2}
COMPUTE_TYPES = {"float16": 68, "float32": 68, "tf32": 77, "float64": 70}
DEFAULT_ALGORITHM, HOST_POINTERS = -1, 0
CALLS = {"heads side by side": 2}  # one for each head; all other products are one call


@pytest.fixture(scope="module", params=["", "--graph"], ids=["by CuPy", "by ctypes, for a graph"])
def printed(request):
    command = [sys.executable, "-m", "tests.hostcuda.stub_cublas", *request.param.split()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def products(printed):
    """Each product with its calls."""
    found = []
    for line in printed[1:]:
        if line.keys() == {"stream"}:
            continue
        if "product" in line:
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return found


def places(x):
    """The address of each value of an array."""
    index = np.indices(x["shape"])
    return x["address"] + sum(i * stride for i, stride in zip(index, x["strides"], strict=True))


def operand(matrix, rows, columns, batch, transposed, itemsize):
    """The addresses of op(A) (batch, rows, columns) that cuBLAS would use."""
    height, width = (columns, rows) if transposed else (rows, columns)
    assert matrix["ld"] >= height
    b, i, j = np.indices((batch, height, width))
    addresses = matrix["address"] + itemsize * (b * matrix["stride"] + i + j * matrix["ld"])
    return addresses.swapaxes(1, 2) if transposed else addresses


def test_every_value_is_read_and_written_where_it_is(products):
    assert len(products) == 13
    for line, calls in products:
        assert len(calls) == CALLS.get(line["product"], 1), line["product"]
        a, b, out = (places(line[name]) for name in ("a", "b", "out"))
        a, b = (np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:])).reshape(-1, *x.shape[-2:]) for x in (a, b))
        wanted = {matrix[0, 0]: i for i, matrix in enumerate(out.reshape(-1, *out.shape[-2:]))}
        out = out.reshape(-1, *out.shape[-2:])
        written = []
        for call in calls:
            m, n, k, batch, (ta, tb) = (call[name] for name in ("m", "n", "k", "batch", "transpose"))
            sizes = {name: np.dtype(line[name]["dtype"]).itemsize for name in ("a", "b", "out")}
            left = operand(call["a"], m, k, batch, ta, sizes["b"])  # of out^T = b^T a^T
            right = operand(call["b"], k, n, batch, tb, sizes["a"])
            result = operand(call["c"], m, n, batch, False, sizes["out"])
            for p, q, r in zip(left, right, result, strict=True):
                i = wanted[r[0, 0]]
                assert np.array_equal(r.T, out[i]) and np.array_equal(p.T, b[i]) and np.array_equal(q.T, a[i])
                written.append(i)
        assert sorted(written) == list(range(len(out))), line["product"]


def test_types_factors_and_modes(printed, products):
    """In a graph, the stream is one of our own, and the handle has memory to work in."""
    streams = [line["stream"] for line in printed if line.keys() == {"stream"}]
    stream, workspace = (streams[0], 32 << 20) if streams else (0, 0)
    for line, calls in products:
        for call in calls:
            for matrix, array in (("a", "b"), ("b", "a"), ("c", "out")):
                assert call[matrix]["type"] == DATA_TYPES[line[array]["dtype"]], line["product"]
            assert call["alpha"] == line["scale"] and call["beta"] == 0
            assert call["compute"] == COMPUTE_TYPES[line["precision"]]
            assert call["algorithm"] == DEFAULT_ALGORITHM and call["pointer_mode"] == HOST_POINTERS
            assert (call["stream"], call["workspace"], call["handle"]) == (stream, workspace, 0xABC)


def test_a_few_calls_in_full(products):
    """Written out by hand."""
    found = {line["product"]: (line, calls[0]) for line, calls in products}
    wanted = {  # transposed, m, n, k, leading dimensions and strides of A, B and C, batch
        "linear layer": ([1, 0], 5, 12, 8, (8, 8, 5), (0, 0, 0), 1),
        "gradient of its weight, in float32": ([0, 1], 8, 5, 12, (8, 5, 8), (0, 0, 0), 1),
        "scores of all heads": ([1, 0], 6, 6, 4, (4, 4, 8), (24, 24, 48), 6),
        "gradient of the values": ([0, 1], 4, 6, 6, (4, 8, 4), (24, 48, 24), 6),
        "one matrix for all images": ([0, 0], 7, 5, 6, (7, 6, 7), (42, 0, 35), 3),
    }
    for name, expected in wanted.items():
        line, call = found[name]
        steps = (tuple(call[x][key] for x in "abc") for key in ("ld", "stride"))
        assert (call["transpose"], call["m"], call["n"], call["k"], *steps, call["batch"]) == expected, name
        assert [call[x]["address"] for x in "abc"] == [line[x]["address"] for x in ("b", "a", "out")]
        assert call["function"] == ("gemmEx" if call["batch"] == 1 else "gemmStridedBatchedEx")


def test_the_stand_in_offers_what_the_binding_has(printed):
    names = printed[0]
    constants = {name: value for name, value in names.items() if name.startswith("CUBLAS_")}
    functions = {name for name, value in names.items() if value is None and name[0] in "abcdefghijklmnopqrstuvwxyz"}
    assert constants == blas.CONSTANTS
    assert blas.offered() <= functions
    stand_in = sys.modules[blas.NAME]
    assert {name for name, value in vars(stand_in).items() if callable(value)} <= functions
    for missing in ("gemmBatchedEx", "setWorkspace"):
        assert missing not in functions and not hasattr(stand_in, missing)
