"""CuPy on the host computes what NumPy computes, or raises."""

import gc

import numpy as np
import pytest

from tests import hostcuda

pytestmark = pytest.mark.hostcuda
FLOATS = ["float16", "float32", "float64"]


def draw(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def assert_equal(got, want, ulps=4):
    assert got.dtype == want.dtype and got.shape == want.shape
    tolerance = ulps * np.finfo(want.dtype).eps if want.dtype.kind == "f" else 0
    np.testing.assert_allclose(got.get(), want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max(initial=0)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["exp", "tanh", "sqrt", "log1p", "negative", "square", "isnan"])
def test_elementwise(cp, name, dtype):
    x = np.abs(draw(3, 5, dtype=dtype))
    assert_equal(getattr(cp, name)(cp.asarray(x)), getattr(np, name)(x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_broadcasting_views_and_numbers(cp, dtype):
    x, y = draw(4, 6, dtype=dtype), draw(3, dtype=dtype)
    a, b = cp.asarray(x), cp.asarray(y)
    assert_equal(a[::-1, ::2] * b + 2.5, x[::-1, ::2] * y + 2.5)
    assert_equal(cp.where(a > 0, a, 0).T, np.where(x > 0, x, 0).T)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("name", ["sum", "max", "mean"])
def test_reductions(cp, name, axis, dtype):
    x = draw(3, 40, 7, dtype=dtype)
    got, want = (getattr(array, name)(axis=axis) for array in (cp.asarray(x), x))
    assert_equal(got, np.asarray(want), ulps=64 if dtype == "float16" else 16)  # NumPy adds float16 one by one


def test_indices(cp):
    x, rows = draw(5, 4), np.array([3, 0, 3])
    a, picked = cp.asarray(x), cp.asarray(rows)
    assert_equal(a[picked], x[rows])
    assert_equal(a[a > 0], x[x > 0])
    assert_equal(a.argmax(1), x.argmax(1))
    cp.add.at(a, picked, 1)
    np.add.at(x, rows, 1)
    assert_equal(a, x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "left, right",
    [
        ((5, 3), (3, 4)),
        ((3,), (3,)),
        ((5, 3), (3,)),
        ((2, 5, 3), (2, 3, 4)),
        ((2, 1, 5, 3), (6, 3, 4)),
        ((2, 5, 3), (3,)),
    ],
    ids=str,
)
def test_products(cp, left, right, dtype):
    a, b = draw(*left, dtype=dtype), draw(*right, dtype=dtype)
    wide = np.float32 if dtype == "float16" else dtype  # the sums of float16 are rounded once, at their end
    want = np.asarray(a.astype(wide) @ b.astype(wide)).astype(dtype)
    assert_equal(cp.asarray(a) @ cp.asarray(b), want)


@pytest.mark.parametrize("left, right", [((3, 4), (5, 4)), ((4, 3), (4, 5)), ((4, 3), (5, 4))], ids=str)
def test_products_of_transposed_views_into_a_view(cp, left, right):
    def product(xp, a, b, out):
        a, b = (x.T if x.shape[axis] != 4 else x for x, axis in ((a, 1), (b, 0)))
        xp.matmul(a, b, out=out[:, ::2])
        return out

    arrays = draw(*left), draw(*right), np.zeros((3, 10), "float32")
    assert_equal(product(cp, *map(cp.asarray, arrays)), product(np, *arrays))


def test_fresh_memory_is_poisoned(cp):
    assert bool(cp.isnan(cp.empty(9, "float32")).all()) and bool(cp.isnan(cp.empty(9, "float16")).all())
    assert (cp.empty(9, "int64").get() == -1).all()
    del_me = cp.zeros(9, "float32")
    del del_me
    assert bool(cp.isnan(cp.empty(9, "float32")).all())  # also where memory was used before


def test_memory_can_run_out(cp, monkeypatch):
    from tests.hostcuda import memory

    gc.collect()  # what is freed later must not add to what there is
    monkeypatch.setattr(memory, "total", memory.total - memory.free_bytes() + 1000)
    assert cp.cuda.runtime.memGetInfo() == (1000, memory.total)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorMemoryAllocation"):
        cp.empty(1001, "int8")
    with pytest.raises(cp.cuda.memory.OutOfMemoryError), cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
        cp.empty(1001, "int8")
    cp.empty(1000, "int8")


@pytest.mark.parametrize(
    "what",
    [
        lambda cp, x: cp.sort(x),
        lambda cp, x: x.argsort(),
        lambda cp, x: cp.unique(x),
        lambda cp, x: cp.random.rand(3),
        lambda cp, x: cp.random.RandomState(0).normal(size=3),
        lambda cp, x: cp.random.default_rng(0),
        lambda cp, x: cp.random.permutation(5),
        lambda cp, x: cp.linalg.inv(x),
        lambda cp, x: cp.linalg.svd(x),
        lambda cp, x: cp.fft.fft(x),
        lambda cp, x: x.astype(complex) @ x,
        lambda cp, x: cp.arange(4).reshape(2, 2) @ cp.arange(4).reshape(2, 2),
        lambda cp, x: cp.cuda.cub.device_reduce(x),
        lambda cp, x: cp.cuda.Device().attributes,
    ],
)
def test_what_cannot_be_run_raises(cp, what):
    x = cp.asarray(draw(3, 3))
    with pytest.raises(hostcuda.HostCudaError, match=r"hostcuda cannot run .*: it needs a GPU"):
        what(cp, x)


def test_cub_raises_where_it_is_switched_on(cp):
    from cupy._core import _accelerator

    before = _accelerator.get_reduction_accelerators(), _accelerator.get_routine_accelerators()
    try:
        _accelerator.set_reduction_accelerators(["cub"])
        _accelerator.set_routine_accelerators(["cub"])
        with pytest.raises(hostcuda.HostCudaError):
            cp.asarray(draw(3, 40)).sum()
    finally:
        _accelerator.set_reduction_accelerators(before[0])
        _accelerator.set_routine_accelerators(before[1])


def test_counters(cp):
    a = cp.asarray(draw(4, 4))
    b = a.astype("float16")
    with hostcuda.counting() as count:
        c = a * 2 + 1
        c @ c
        b @ b
        float(c[0, 0])
        cp.asarray(np.ones(3, "float32"))
        cp.cuda.Stream.null.synchronize()
    assert count.launches == 2 and count.by_kernel() == {count.kernels[0]: 1, count.kernels[1]: 1}
    assert [g.function for g in count.gemms] == ["gemmEx"] * 2
    assert [(g.m, g.n, g.k, g.inputs, g.compute) for g in count.gemms] == [
        (4, 4, 4, "float32", "32F"),
        (4, 4, 4, "float16", "32F"),
    ]
    assert count.bytes_to_host == [4] and count.bytes_to_device == [12]
    assert count.synchronisations >= 1 and 64 in count.allocations
    a + 1
    assert count.launches == 2  # nothing is counted outside


def test_another_version_of_cupy_is_refused(monkeypatch):
    monkeypatch.setattr(hostcuda, "VERSION", "0.1")
    assert "works with cupy-cuda13x 0.1 only, and cupy-cuda13x " in hostcuda.why_not()
    monkeypatch.setattr("importlib.metadata.distributions", lambda: [])
    assert hostcuda.why_not() == "CuPy is not installed: pip install -e '.[hostcuda]'"
