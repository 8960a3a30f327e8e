"""The engine's own CUDA kernels: right for rows of any length, in any order of the warps, and one launch each."""

import numpy as np
import pytest

from autograd import kernels
from autograd.kernels import rows
from autograd.kernels.attention import mix_heads
from autograd.kernels.layer_norm import layer_norm, layer_norm_grad
from autograd.kernels.softmax import softmax_of_rows, softmax_of_rows_grad
from tests import hostcuda

pytestmark = pytest.mark.hostcuda
LENGTHS = [1, 31, 32, 127, 129, 300]
DTYPES = ["float16", "float32", "float64"]


def draw(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def close(got, want):
    """Within some roundings; the host rounds float16 after every step, and the kernels once."""
    got = got.get()
    assert got.dtype == want.dtype and got.shape == want.shape
    tolerance = 8 * np.finfo(want.dtype).eps * max(1, np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_softmax(cp, n, dtype):
    x, g = draw(2, 3, n, dtype=dtype), draw(2, 3, n, dtype=dtype)
    with hostcuda.guarded(), hostcuda.counting() as count:
        y = softmax_of_rows(cp.asarray(x))
        dx = softmax_of_rows_grad(cp.asarray(g), y)
    assert count.kernels == ["softmax_of_rows", "softmax_of_rows_grad"]
    close(y, softmax_of_rows(x))
    close(dx, softmax_of_rows_grad(g.copy(), softmax_of_rows(x)))


def test_softmax_of_rows_that_are_masked(cp):
    x = np.float32([[0, -np.inf, 1], [-np.inf] * 3, [1e30, -1e30, 0], [500, 500, -500]])
    close(softmax_of_rows(cp.asarray(x)), softmax_of_rows(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_layer_norm(cp, n, dtype):
    x, g, weight, bias = draw(2, 3, n, dtype=dtype), draw(3, 2, n, dtype=dtype).swapaxes(0, 1), *draw(2, n, dtype=dtype)
    with hostcuda.guarded():
        there = layer_norm(*map(cp.asarray, (x, weight, bias)), 1e-3)
        gradients = layer_norm_grad(cp.asarray(g), *there[1:], cp.asarray(weight))
    here = layer_norm(x, weight, bias, 1e-3)
    for got, want in zip((*there, *gradients), (*here, *layer_norm_grad(g, *here[1:], weight)), strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(cp, dtype):
    x = np.concatenate([np.linspace(-9, 9, 101), [0, -0.0, 200, -200]]).astype(dtype)
    with hostcuda.counting() as count:
        there = kernels.gelu(cp.asarray(x), with_derivative=True)
    assert len(count.kernels) == 1
    for got, want in zip(there, kernels.gelu(x, with_derivative=True), strict=True):
        close(got, want)
    close(kernels.gelu(cp.asarray(x), with_derivative=False)[0], kernels.gelu(x, with_derivative=False)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixing_heads(cp, dtype):
    maps, weight = draw(2, 3, 5, 7, dtype=dtype), draw(3, 3, dtype=dtype)
    with hostcuda.guarded(), hostcuda.counting() as count:
        there = mix_heads(cp.asarray(maps), cp.asarray(weight).T)
    assert count.kernels == ["mix_heads"]
    close(there, mix_heads(maps, weight.T))


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adamw_and_the_average(cp, decay):
    here, there = [draw(4, 50)[i].copy() for i in range(4)], [cp.asarray(row) for row in draw(4, 50)]
    for arrays in (here, there):
        arrays[3] *= arrays[3]
        with hostcuda.counting() as count:
            kernels.adamw(*arrays, 1e-2, (0.9, 0.999), 1e-8, decay, 7)
            kernels.move_average(arrays[2], arrays[0], 0.25)
    assert count.kernels == ["adamw", "move_average"]
    for got, want in zip(there, here, strict=True):
        close(got, want)


def test_a_barrier_that_is_not_there_is_noticed(cp, monkeypatch):
    """Both are needed: one before the shared memory is read, one before it is written again."""
    x, weight, bias = draw(4, 300), *draw(2, 300)
    want, *_ = layer_norm(x, weight, bias, 1e-3)

    def wrong():
        rows.compiled.cache_clear()
        found = []
        for schedule in ("together", "forwards", "backwards"):
            with hostcuda.schedule(schedule):
                y, *_ = layer_norm(*map(cp.asarray, (x, weight, bias)), 1e-3)
            found.append(not np.allclose(y.get(), want, atol=1e-4))
        return any(found)

    assert not wrong()
    barrier = "    __syncthreads();\n"
    whole = rows._TOGETHER
    assert whole.count(barrier) == 2
    first, second = whole.replace(barrier, "", 1), barrier.join(whole.split(barrier)[:2]) + whole.split(barrier)[2]
    for source in (first, second):
        monkeypatch.setattr(rows, "_TOGETHER", source)
        assert wrong()
    rows.compiled.cache_clear()
