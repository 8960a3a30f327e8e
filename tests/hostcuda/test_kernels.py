"""Kernels with shared memory and barriers: they run, and their mistakes show."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import hostcuda

pytestmark = pytest.mark.hostcuda
SCHEDULES = ["together", "forwards", "backwards"]

# Sums of rows, a block for each: every warp adds up its part, and the first thread adds up those of the warps.
ROW_SUMS = r"""
extern "C" __global__ void row_sums(const float* x, float* y, int n) {
  __shared__ float of_warp[32];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (int i = 0; i < blockDim.x / 32; i++) sum += of_warp[i];
    y[blockIdx.x] = sum;
  }
}
"""
# Every block subtracts its first value from all, in place: the last thread must not read after the first wrote.
MINUS_FIRST = r"""
extern "C" __global__ void minus_first(float* x) {
  float first = x[blockIdx.x * blockDim.x];
  __syncthreads();
  x[blockIdx.x * blockDim.x + threadIdx.x] -= first;
}
"""
REVERSED = r"""
extern "C" __global__ void reversed(float* x) {
  extern __shared__ float row[];
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}
"""


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def row_sums(cp, source, threads=96):
    x = draw(5, 200)
    y = cp.empty(5, "float32")
    cp.RawKernel(source, "row_sums")((5,), (threads,), (cp.asarray(x), y, np.int32(200)))
    return np.allclose(y.get(), x.sum(1), atol=1e-5)


def minus_first(cp, source):
    x = draw(2, 64)
    y = cp.asarray(x)
    cp.RawKernel(source, "minus_first")((2,), (64,), (y,))
    return np.array_equal(y.get(), x - x[:, :1])


def without_barrier(source):
    assert source.count("__syncthreads();") == 1
    return source.replace("__syncthreads();", "__syncwarp();")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_memory_shuffles_and_barriers(cp, schedule):
    with hostcuda.schedule(schedule):
        assert row_sums(cp, ROW_SUMS) and minus_first(cp, MINUS_FIRST)
        x = draw(40)
        y = cp.asarray(x)
        cp.RawKernel(REVERSED, "reversed")((1,), (40,), (y,), shared_mem=160)
        np.testing.assert_array_equal(y.get(), x[::-1])


@pytest.mark.parametrize("run, source", [(row_sums, ROW_SUMS), (minus_first, MINUS_FIRST)])
def test_a_missing_barrier_shows_under_some_schedule(cp, run, source):
    right = []
    for schedule in SCHEDULES:
        with hostcuda.schedule(schedule):
            assert run(cp, source)
            right.append(run(cp, without_barrier(source)))
    assert not all(right)


def test_the_schedules_differ(cp):
    """Each kernel that forgets a barrier is right in one order of the warps and wrong in the other."""

    def right(run, source, schedule):
        with hostcuda.schedule(schedule):
            return run(cp, without_barrier(source))

    by_the_last = ROW_SUMS.replace("threadIdx.x == 0", "threadIdx.x == blockDim.x - 1")
    assert right(row_sums, ROW_SUMS, "backwards") and not right(row_sums, ROW_SUMS, "forwards")
    assert right(row_sums, by_the_last, "forwards") and not right(row_sums, by_the_last, "backwards")


def test_shared_memory_is_poisoned_in_every_block(cp):
    source = r"""
    extern "C" __global__ void remember(float* y) {
      __shared__ float s[1];
      y[blockIdx.x] = s[0];
      s[0] = 1;
    }"""
    y = cp.zeros(3, "float32")
    cp.RawKernel(source, "remember")((3,), (1,), (y,))
    assert np.isnan(y.get()).all()


@pytest.mark.parametrize(
    "body, want",
    [
        ("__shfl_sync(~0u, lane, 5)", [5] * 32),
        ("__shfl_sync(~0u, lane, 1, 8)", [i // 8 * 8 + 1 for i in range(32)]),
        ("__shfl_down_sync(~0u, lane, 3)", [i + 3 if i < 29 else i for i in range(32)]),
        ("__shfl_up_sync(~0u, lane, 2, 4)", [i - 2 if i % 4 >= 2 else i for i in range(32)]),
        ("__shfl_xor_sync(~0u, lane, 7)", [i ^ 7 for i in range(32)]),
        ("__popc(__ballot_sync(~0u, lane < 7))", [7] * 32),
        ("__any_sync(~0u, lane == 3) + 2 * __all_sync(~0u, lane >= 0)", [3] * 32),
    ],
)
def test_what_the_threads_of_a_warp_show_each_other(cp, body, want):
    source = f'extern "C" __global__ void show(int* y) {{ int lane = threadIdx.x; y[lane] = {body}; }}'
    y = cp.empty(32, "int32")
    cp.RawKernel(source, "show")((1,), (32,), (y,))
    assert y.get().tolist() == want


def test_a_barrier_that_some_threads_miss_raises(cp):
    source = r"""
    extern "C" __global__ void some(float* y) {
      if (threadIdx.x < 16) __syncwarp();
      else __syncthreads();
      y[threadIdx.x] = 1;
    }"""
    with pytest.raises(hostcuda.HostCudaError, match="some: some of its threads wait at a barrier"):
        cp.RawKernel(source, "some")((1,), (64,), (cp.empty(64, "float32"),))


def test_launches_that_no_gpu_takes_raise(cp):
    kernel = cp.RawKernel(MINUS_FIRST, "minus_first")
    with pytest.raises(hostcuda.HostCudaError, match=r"minus_first: no GPU launches a grid of .* \(2048, 1, 1\)"):
        kernel((1,), (2048,), (cp.zeros(2048, "float32"),))
    with pytest.raises(hostcuda.HostCudaError, match="65536 bytes of shared memory are more than the 49152"):
        cp.RawKernel(REVERSED, "reversed")((1,), (4,), (cp.zeros(4, "float32"),), shared_mem=1 << 16)
    with pytest.raises(hostcuda.HostCudaError, match="no kernel other"):
        cp.RawKernel(MINUS_FIRST, "other")((1,), (4,), (cp.zeros(4, "float32"),))


def test_nvrtc_is_asked(cp):
    """g++ would take this one."""
    source = '#include <math.h>\nextern "C" __global__ void f(float* x) { x[0] = strlen("abc") * INFINITY; }'
    with pytest.raises(cp.cuda.compiler.CompileException, match="error"):
        cp.RawKernel(source, "f").compile()


WRITES = """
from tests import hostcuda
hostcuda.install()
import cupy, sys
fill = cupy.RawKernel('extern "C" __global__ void fill(float* x) {{ x[threadIdx.x] = 1; }}', "fill")
with hostcuda.guarded():
    x = cupy.empty(37, "float32")
    fill((1,), ({threads},), (x,))
    assert float(x.sum()) == 37
"""


@pytest.mark.parametrize("threads, code", [(37, 0), (38, -signal.SIGSEGV)])
def test_a_write_past_the_end_dies_at_a_guard_page(threads, code):
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", WRITES.format(threads=threads)], cwd=root, capture_output=True)
    assert result.returncode == code, result.stderr.decode()


def test_own_elementwise_and_reduction_kernels(cp):
    x = draw(6, 40)
    square_sum = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "square_sum")
    np.testing.assert_allclose(square_sum(cp.asarray(x), axis=1).get(), (x * x).sum(1), rtol=1e-5)
    step = cp.ElementwiseKernel("T g, float32 lr", "T p, T m", "m = 0.9f * m + g; p -= lr * m;", "step")
    p, m = cp.zeros((6, 40), "float32"), cp.ones((6, 40), "float32")
    with hostcuda.counting() as count:
        step(cp.asarray(x), 0.5, p, m)
    assert count.kernels == ["step"]
    np.testing.assert_allclose(p.get(), -0.5 * (0.9 + x), rtol=1e-5, atol=1e-6)
