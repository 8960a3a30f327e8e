"""The engine's own CUDA kernels: correct for rows of any length and any order of the warps, and one launch each."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autograd import kernels
from autograd.function import unbroadcast
from autograd.kernels import launch, parts
from autograd.kernels.attention import mix_heads
from autograd.kernels.fused_heads import empty_maps
from autograd.kernels.layer_norm import layer_norm, layer_norm_grad
from autograd.kernels.softmax import softmax_of_rows, softmax_of_rows_grad
from tests import hostcuda

pytestmark = pytest.mark.hostcuda
LENGTHS = [1, 31, 32, 129, 300, 1100]  # the last is long enough for a block of its own
DTYPES = ["float16", "float32", "float64"]


def draw(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def close(got, want):
    """Equal within a few roundings: NumPy rounds float16 after every operation, and the kernels once."""
    got = got.get()
    assert got.dtype == want.dtype and got.shape == want.shape
    tolerance = 8 * np.finfo(want.dtype).eps * max(1, np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.fixture(autouse=True, params=["together", "forwards", "backwards"])
def _in_any_order_and_within_bounds(request):
    with hostcuda.schedule(request.param), hostcuda.guarded():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_softmax(cp, n, dtype):
    x, g = draw(2, 3, n, dtype=dtype), draw(2, 3, n, dtype=dtype)
    with hostcuda.counting() as count:
        y = softmax_of_rows(cp.asarray(x))
        dx = softmax_of_rows_grad(cp.asarray(g), y)
    assert count.kernels == ["softmax_of_rows", "softmax_of_rows_grad"]
    close(y, softmax_of_rows(x))
    close(dx, softmax_of_rows_grad(g.copy(), softmax_of_rows(x)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 9), (2, 1, 3, 8), (2, 2, 1, 33)])
def test_softmax_of_padded_rows(cp, shape, dtype):
    """As maps are: in place, and nothing is copied."""
    x, g = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    maps, dmaps = (empty_maps(cp.empty(0, dtype), shape) for _ in range(2))
    maps[...], dmaps[...] = cp.asarray(x), cp.asarray(g)
    with hostcuda.counting() as count:
        y = softmax_of_rows(maps, overwrite=True)
        dx = softmax_of_rows_grad(dmaps, y)
    assert count.kernels == ["softmax_of_rows", "softmax_of_rows_grad"] and not count.bytes_on_device
    assert y is maps and dx is dmaps
    close(y, softmax_of_rows(x))
    close(dx, softmax_of_rows_grad(g.copy(), softmax_of_rows(x)))
    scattered = cp.asarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    close(softmax_of_rows(scattered), softmax_of_rows(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sigmoid_and_the_gradient_of_relu(cp, dtype):
    x, g = np.concatenate([draw(40), [0, -0.0, 200, -200]]).astype(dtype), draw(44, dtype=dtype)
    g[3] = np.inf
    with hostcuda.counting() as count:
        y, dx = kernels.sigmoid(cp.asarray(x)), kernels.positive(cp.asarray(g), cp.asarray(x))
    assert count.kernels == ["sigmoid", "positive"]
    close(y, kernels.sigmoid(x))
    np.testing.assert_array_equal(dx.get(), kernels.positive(g, x))


def test_softmax_of_rows_that_are_masked(cp):
    x = np.float32([[0, -np.inf, 1], [-np.inf] * 3, [1e30, -1e30, 0], [500, 500, -500]])
    close(softmax_of_rows(cp.asarray(x)), softmax_of_rows(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_layer_norm(cp, n, dtype):
    x, g, weight, bias = draw(2, 3, n, dtype=dtype), draw(3, 2, n, dtype=dtype).swapaxes(0, 1), *draw(2, n, dtype=dtype)
    there = layer_norm(*map(cp.asarray, (x, weight, bias)), 1e-3)
    gradients = layer_norm_grad(cp.asarray(g), *there[1:], cp.asarray(weight))
    here = layer_norm(x, weight, bias, 1e-3)
    for got, want in zip((*there, *gradients), (*here, *layer_norm_grad(g, *here[1:], weight)), strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3), (2, 100, 33), (1000, 1)])
def test_sums_over_rows(cp, shape, dtype, monkeypatch):
    """Two launches, whatever the sizes; with the same bits again, and more parts than one."""
    monkeypatch.setattr(parts, "MOST_PARTS", 3)
    x = draw(*shape, dtype=dtype)
    for result in (dtype, "float32") if dtype == "float16" else (dtype,):
        with hostcuda.counting() as count:
            there = kernels.sum_over_rows(cp.asarray(x), result)
        assert count.kernels == ["sum_rows", "merge_sums"]
        close(there, kernels.sum_over_rows(x, result))
        assert np.array_equal(there.get(), kernels.sum_over_rows(cp.asarray(x), result).get())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis, keepdims", [((0, 1), False), ((1, 0), True), ((0, 1, 2), False)])
def test_sums_over_the_first_axes(cp, axis, keepdims, dtype):
    x = draw(8, 70, 3, 5, dtype=dtype)
    with hostcuda.counting() as count:
        there = kernels.total(cp.asarray(x), axis, keepdims)
    assert count.kernels == ["sum_rows", "merge_sums"]
    close(there, kernels.total(x, axis, keepdims))
    with hostcuda.counting() as count:
        close(kernels.total(cp.asarray(x), 0), kernels.total(x, 0))
    assert "sum_rows" not in count.kernels  # eight rows are few


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 1, 1, 5), (2, 1, 3, 5), (70, 3, 5)])
def test_the_gradient_of_a_factor(cp, shape, dtype, monkeypatch):
    module = importlib.import_module("autograd.kernels.sum_products")
    monkeypatch.setattr(module, "LEAST_ROWS", 50)
    g, x = draw(2, 70, 3, 5, dtype=dtype), draw(2, 70, 3, 5, dtype=dtype)[::-1]
    with hostcuda.counting() as count:
        there = kernels.sum_products(cp.asarray(g), cp.asarray(x), shape)
    assert count.kernels[-2:] == ["sum_products", "merge_sums"] and count.launches <= 3  # x is copied first
    close(there, unbroadcast(g.astype("float64") * x, shape).astype(dtype))
    for odd in ((2, 70, 3, 1), (2, 1, 3, 1), g.shape):  # over the last axis, CuPy sums
        assert kernels.sum_products(cp.asarray(g), cp.asarray(x), odd) is None
    assert kernels.sum_products(g, x, shape) is None and kernels.sum_products(cp.asarray(g), 2.0, shape) is None


def test_layer_norm_of_rows_that_are_too_long_for_shared_memory(cp):
    x, weight = draw(3, 7000), draw(7000)
    there = layer_norm(*map(cp.asarray, (x, weight, weight)), 1e-3)
    here = layer_norm(x, weight, weight, 1e-3)
    gradients = layer_norm_grad(cp.asarray(x), *there[1:], cp.asarray(weight))
    for got, want in zip(gradients, layer_norm_grad(x, *here[1:], weight), strict=True):
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
    with hostcuda.counting() as count:
        there = mix_heads(cp.asarray(maps), cp.asarray(weight).T)
    assert count.kernels[-1] == "mix_heads" and count.launches == 2  # the weight is copied first, unless contiguous
    close(there, mix_heads(maps, weight.T))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 129, 300])
def test_cross_entropy(cp, n, dtype):
    x, classes, weights = draw(5, n, dtype=dtype), np.arange(5) % n, np.abs(draw(5, n, dtype=dtype))
    for targets in (classes, weights, classes.astype("int32")):
        with hostcuda.counting() as count:
            there = kernels.cross_entropy(cp.asarray(x), cp.asarray(targets), with_grad=True)
        assert count.by_kernel()["cross_entropy"] == 1
        for got, want in zip(there, kernels.cross_entropy(x, targets, with_grad=True), strict=True):
            close(got, want)
        loss, dx = kernels.cross_entropy(cp.asarray(x), cp.asarray(targets), with_grad=False)
        assert dx is None and np.array_equal(loss.get(), there[0].get())


def test_cross_entropy_of_classes_that_cannot_be(cp):
    x, t = np.float32([[0, -np.inf, 1], [-np.inf, 2, -np.inf], [1e30, 0, -1e30]]), np.float32(np.eye(3)[[0, 1, 0]])
    there = kernels.cross_entropy(cp.asarray(x), cp.asarray(t), with_grad=True)
    for got, want in zip(there, kernels.cross_entropy(x, t, with_grad=True), strict=True):
        close(got, want)


@pytest.mark.parametrize("dtypes", [("float16", "float32"), *((dtype, dtype) for dtype in DTYPES)])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 31), (3, 70, 33), (300, 129)])
def test_a_scale_and_a_shift(cp, shape, whole, dtypes, monkeypatch):
    """One launch, and two for the gradient. With a float16 x beside float32, too, as in mixed precision."""
    monkeypatch.setattr(parts, "MOST_PARTS", 3)
    narrow, wide = dtypes
    x, g, weight = draw(*shape, dtype=narrow), draw(*shape, dtype=wide), draw(shape[-1], dtype=wide)
    shift = draw(*(shape if whole else shape[-1:]), dtype=wide)
    there = [cp.asarray(a) for a in (x, weight, shift, g)]
    with hostcuda.counting() as count:
        y = kernels.affine(*there[:3])
    assert count.kernels == ["affine"]
    with hostcuda.counting() as count:
        gradients = kernels.affine_grad(there[3], *there[:2], whole, [True] * 3)
    assert count.kernels == ["affine_grad", "merge_sums"]
    want = kernels.affine(x, weight, shift), *kernels.affine_grad(g, x, weight, whole, [True] * 3)
    for got, own in zip((y, *gradients), want, strict=True):
        close(got, own)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples, tokens, outputs, width", [(1, 1, 1, 1), (3, 5, 4, 7), (2, 9, 1, 40)])
def test_a_linear_layer_along_the_tokens(cp, samples, tokens, outputs, width, dtype):
    x, weight, bias = draw(samples, tokens, width, dtype=dtype), draw(outputs, tokens, dtype=dtype), draw(outputs)
    g, wide = draw(samples, outputs, width, dtype=dtype), np.promote_types(dtype, "float32")
    bias = bias.astype(wide)
    with hostcuda.counting() as count:
        y = kernels.token_linear(*map(cp.asarray, (x, weight, bias)))
        gradients = kernels.token_linear_grad(*map(cp.asarray, (g, x, weight)), wide, [True] * 3)
    assert len(count.gemms) == 3 and not count.bytes_on_device
    assert count.by_kernel()["sum_rows"] == 1  # of the bias
    close(y, kernels.token_linear(x, weight, bias))
    for got, own in zip(gradients, kernels.token_linear_grad(g, x, weight, wide, [True] * 3), strict=True):
        assert got.dtype == own.dtype
        tolerance = (1e-5 if dtype != "float16" else 4e-3) * max(1, np.abs(own).max())
        np.testing.assert_allclose(got.get(), own, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtypes", [("float32", "float32"), *(("float16", wide) for wide in DTYPES)])
@pytest.mark.parametrize("rows", [None, [3, 0]])
@pytest.mark.parametrize("n", [1, 130])
def test_the_end_of_a_residual_branch(cp, n, rows, dtypes):
    """Also with h and the weight in float16 beside wider x, bias and scale, as in mixed precision."""
    narrow, wide = dtypes
    rows = None if rows is None else np.array(rows)
    x, g, bias, scale = *draw(2, 4, 3, 5, dtype=wide), *draw(2, 5, dtype=wide)
    h, weight = draw(4 if rows is None else 2, 3, n, dtype=narrow), draw(5, n, dtype=wide)
    arrays = h, weight.astype(narrow), weight, bias, scale, 1.25
    there = [cp.asarray(a) if isinstance(a, np.ndarray) else a for a in arrays]
    chosen = None if rows is None else cp.asarray(rows)
    with hostcuda.counting() as count:
        y = kernels.linear_residual(cp.asarray(x), *there[:2], *there[3:], chosen)
    assert count.kernels[-1] == "linear_residual" and len(count.gemms) == 1
    assert count.launches == (1 if rows is None else 2)  # the samples without a branch are copied first
    gradients = kernels.linear_residual_grad(cp.asarray(g), *there, chosen, [True] * 4)
    own = kernels.linear_residual(x, *arrays[:2], *arrays[3:], rows)
    want = own, *kernels.linear_residual_grad(g, *arrays, rows, [True] * 4)
    for got, own in zip((y, *gradients), want, strict=True):
        assert got.dtype == own.dtype and got.shape == own.shape
        tolerance = (1e-5 if narrow == "float32" else 4e-3) * max(1, np.abs(own).max())  # rounded in other places
        np.testing.assert_allclose(got.get(), own, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decayed", [-5, 0, 20, 50, 70])
def test_adamw(cp, decayed, dtype):
    """One launch. The first `decayed` values decay: none or all of them, too, as for a part of the parameters."""
    results = []
    for put in (np.array, cp.asarray):
        p, g, m, v = map(put, draw(4, 50, dtype=dtype))
        v *= v
        with hostcuda.counting() as count:
            kernels.adamw(p, g, m, v, 7, 1e-2, (0.9, 0.999), 1e-3, 0.01, decayed)
        results.append((p, g, m, v))
    assert count.kernels == ["adamw"] and not count.copies_to_device and not count.copies_to_host
    for want, got in zip(*results, strict=True):
        close(got, want)


TENSORS = [(0, 1, True), (1, 300, True), (300, 9000, True), (9000, 9020, True), (9020, 9100, False)]  # some in pieces


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tensors, decay", [(TENSORS, 0.05), (TENSORS[1:3], 0.05), (TENSORS, 0.0)])
def test_lamb(cp, tensors, decay, dtype):
    """Two launches and no copy, once the table of tensors is there, and always the same bits."""
    results = []
    for put in (np.array, cp.asarray, cp.asarray):
        p, g, m, v = map(put, draw(4, 9100, dtype=dtype))
        v *= v
        v += 0.1
        p[9000:9020] = 0  # a tensor of zeros has no ratio
        before = g.copy()
        for step in (7, 8):
            with hostcuda.counting() as count:
                kernels.lamb(p, g, m, v, tensors, step, 1e-2, (0.9, 0.999), 1e-3, decay, 0.25)
        assert (g == before).all()
        results.append((p, m, v))
    assert count.kernels == ["lamb_direction", "lamb_move"] and not count.copies_to_device and not count.copies_to_host
    for want, got, again in zip(*results, strict=True):
        close(got, want)
        np.testing.assert_array_equal(got.get(), again.get())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_moving_average(cp, dtype):
    results = []
    for put in (np.array, cp.asarray):
        average, p = map(put, draw(2, 50, dtype=dtype))
        with hostcuda.counting() as count:
            kernels.move_average(average, p, 0.25)
        results.append((average, p))
    assert count.kernels == ["move_average"] and not count.copies_to_device
    for want, got in zip(*results, strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 255, 257, 5000])
def test_squares(cp, n, dtype):
    x = draw(n, dtype=dtype)
    with hostcuda.guarded(), hostcuda.counting() as count:
        there = kernels.squares(cp.asarray(x))
    assert count.kernels == ["squares"] and there.dtype == np.float64
    np.testing.assert_allclose(there.get().sum(), (x.astype(np.float64) ** 2).sum(), rtol=1e-12)
    if dtype == "float32":
        assert np.isfinite(kernels.squares(cp.asarray(np.full(n, 3e38, np.float32))).get()).all()
    x[n // 2] = np.nan
    assert np.isnan(kernels.squares(cp.asarray(x)).get().sum())


def test_a_barrier_that_is_not_there_is_noticed(cp, monkeypatch):
    """Both are needed: one before the shared memory is read, one before it is written again."""
    x, weight, bias = draw(4, 1100), *draw(2, 1100)
    want, *_ = layer_norm(x, weight, bias, 1e-3)

    def wrong():
        launch.compiled.cache_clear()
        found = []
        for schedule in ("together", "forwards", "backwards"):
            with hostcuda.schedule(schedule):
                y, *_ = layer_norm(*map(cp.asarray, (x, weight, bias)), 1e-3)
            found.append(not np.allclose(y.get(), want, atol=1e-4))
        return any(found)

    assert not wrong()
    barrier = "    __syncthreads();\n"
    whole = launch._REDUCTION
    assert whole.count(barrier) == 2
    first, second = whole.replace(barrier, "", 1), barrier.join(whole.split(barrier)[:2]) + whole.split(barrier)[2]
    for source in (first, second):
        monkeypatch.setattr(launch, "_REDUCTION", source)
        assert wrong()
    launch.compiled.cache_clear()


PAST_THE_END = """
from tests import hostcuda
hostcuda.install()
import cupy, importlib
softmax = importlib.import_module("autograd.kernels.softmax")
loop = "EACH(i) y[i]"
assert loop in softmax._SOFTMAX
softmax._SOFTMAX = softmax._SOFTMAX.replace(loop, "for (int i = threadIdx.x % TEAM; i {sign} n; i += TEAM) y[i]")
with hostcuda.guarded():
    y = softmax.softmax_of_rows(cupy.ones((1, 37), "float32"))
    assert abs(float(y.sum()) - 1) < 1e-5
"""


@pytest.mark.parametrize("sign, code", [("<", 0), ("<=", -signal.SIGSEGV)])
def test_one_value_too_many_is_noticed(sign, code):
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", PAST_THE_END.replace("{sign}", sign)], cwd=root, capture_output=True)
    assert result.returncode == code, result.stderr.decode()
