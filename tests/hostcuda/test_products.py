"""Matrix products on a GPU: which calls of cuBLAS they make, what they copy, and in what precision they accumulate."""

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, cuda, ops
from autograd.kernels import gemm, product
from tests import hostcuda

pytestmark = pytest.mark.hostcuda
DTYPES = ["float16", "float32", "float64"]
HEADS = (3, 5, 2, 7, 4)  # q, k and v; images; heads; tokens; and values of each


def draw(cp, *shape, dtype="float32"):
    return cp.asarray(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def heads(cp, dtype="float32"):
    """q, k and v as attention has them: views into (images, tokens, 3 * heads * values)."""
    three, images, count, tokens, size = HEADS
    return draw(cp, images, tokens, three, count, size, dtype=dtype).transpose(2, 0, 3, 1, 4)


def multiplied(a, b, **options):
    """The product, once it is checked, and what it asked of the GPU."""
    with hostcuda.guarded(), hostcuda.counting() as count:
        got = product(a, b, **options)
    want = options.get("scale", 1) * np.matmul(a.get().astype("float64"), b.get().astype("float64"))
    tolerance = 8 * np.finfo(a.dtype.name).eps * max(1, np.abs(want).max(initial=0))
    np.testing.assert_allclose(got.get(), want, rtol=0, atol=tolerance)
    return got, count


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_multiplied_where_they_lie(cp, dtype):
    q, k, v = heads(cp, dtype)
    maps = draw(cp, 5, 2, 7, 7, dtype=dtype)
    room = cp.empty((5, 7, 3, 2, 4), dtype).transpose(2, 0, 3, 1, 4)
    for a, b, options in (
        (q, k.swapaxes(-1, -2), {"scale": 0.5}),
        (maps, v, {"out": room[0]}),
        (maps.swapaxes(-1, -2), v, {"out": room[2]}),
    ):
        got, count = multiplied(a, b, **options)
        assert got.dtype == dtype and count.launches == 0 and not count.bytes_on_device  # nothing is copied
        assert [(g.function, g.batch, g.inputs) for g in count.gemms] == [("gemmStridedBatchedEx", 5, dtype)] * 2


def test_one_call_is_enough_for_what_lies_evenly(cp):
    maps = draw(cp, 5, 2, 3, 7)
    _, count = multiplied(maps, maps.swapaxes(-1, -2))
    assert [(g.function, g.batch) for g in count.gemms] == [("gemmStridedBatchedEx", 10)]
    _, count = multiplied(cp.broadcast_to(draw(cp, 3, 7), (4, 3, 7)), draw(cp, 7, 2))
    assert [(g.function, g.batch) for g in count.gemms] == [("gemmStridedBatchedEx", 4)]
    _, count = multiplied(draw(cp, 6, 4).T, draw(cp, 6, 3))
    assert [(g.function, g.m, g.n, g.k) for g in count.gemms] == [("gemmEx", 3, 4, 6)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_shapes_and_strides(cp, dtype):
    x, w = draw(cp, 6, 4, dtype=dtype), draw(cp, 3, 4, dtype=dtype)
    q, k, _ = heads(cp, dtype)
    for a, b in (
        (x[:1], w.T), (x[:, :1], w[:1]), (x[:1, :1], w[:1, :1]), (x[::2, ::2], w[:, :2].T), (x[:, :0], w[:, :0].T),
        (x[:0], w.T), (q[:, :, :1], k.swapaxes(-1, -2)), (q[:1, :1], k[:, :1].swapaxes(-1, -2)), (x[::-1], w.T),
        (x.T[:, None], x[None]),
    ):  # fmt: skip
        multiplied(a, b)


def test_float16_is_added_up_in_float32(cp):
    """4096 + 1 + ... + 1 stays 4096 in float16; and a wide result keeps what float16 cannot hold."""
    a, b = cp.ones((1, 2049), "float16"), cp.ones((2049, 1), "float16")
    a[0, 0] = 4096
    got, count = multiplied(a, b)
    assert float(got[0, 0]) == 6144 and count.gemms[0].compute == "32F"
    wide = product(a * 8, b * 8, out=cp.empty((1, 1), "float32"))
    assert float(wide[0, 0]) == 6144 * 64
    a, b = draw(cp, 2, 1, 3, 4, dtype="float16"), draw(cp, 5, 4, 2, dtype="float16")
    broadcast, _ = multiplied(a, b, dtype="float32")
    assert broadcast.dtype == "float32" and broadcast.shape == (2, 5, 3, 2)


def test_tf32_is_asked_for_by_autocast(cp):
    def kinds():
        with hostcuda.counting() as count:
            product(draw(cp, 2, 3), draw(cp, 3, 2))
            product(draw(cp, 2, 3, dtype="float64"), draw(cp, 3, 2, dtype="float64"))
        return [g.compute for g in count.gemms]

    assert kinds() == ["32F", "64F"]
    with ag.autocast("tf32"):
        assert kinds() == ["32F_FAST_TF32", "64F"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_cublas_cupy_multiplies(cp, dtype, monkeypatch):
    q, k, v = heads(cp, dtype)
    room = cp.empty((5, 7, 3, 2, 4), dtype).transpose(2, 0, 3, 1, 4)
    monkeypatch.setattr(cuda, "cublas", lambda: None)
    gemm._say_once.cache_clear()
    with pytest.warns(UserWarning, match="cuBLAS bindings are not as expected"):
        multiplied(q, k.swapaxes(-1, -2), scale=0.5)
    multiplied(draw(cp, 5, 2, 7, 7, dtype=dtype), v, out=room[1])
    multiplied(draw(cp, 6, 4, dtype=dtype), draw(cp, 3, 4, dtype=dtype).T)
    large = cp.full((2, 64), 64, dtype)
    assert float(product(large, large.T, dtype=np.promote_types(dtype, "float32"))[0, 0]) == 2**18


def test_autocast_there_is_autocast_here():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("f4") for shape in ((2, 5, 18), (2, 2), (2,), (2, 2), (2,))]
    x, h, w, b, s = (rng.standard_normal(shape).astype("f4") for shape in ((3, 4, 6), (3, 4, 5), (6, 5), (6,), (6,)))

    def run(device):
        results = []
        with ag.autocast():
            for fn, inputs in (
                (ops.talking_heads_attention, arrays),
                (lambda *a: ops.query_attention(*a, 2), (x[:, 0], x, *[w @ w.T / 8, b] * 2)),
                (ops.linear_residual, (x, h, w, b, s)),
                (lambda *a: ops.linear_residual(*a, 2.0, np.array([2, 0])), (x, h[:2], w, b, s)),
                (ops.linear, (h, w, b)),
            ):
                tensors = [Tensor(array).to(device) for array in inputs]
                for t in tensors:
                    t.requires_grad = True
                y = fn(*tensors)
                gradients = ag.grad(y, tensors, np.random.default_rng(1).standard_normal(y.shape))
                results += [y.numpy(), *(g.numpy() for g in gradients)]
        return results

    for here, there in zip(run("cpu"), run("cuda"), strict=True):
        assert here.dtype == there.dtype
        np.testing.assert_allclose(there, here, rtol=0, atol=3e-3 * max(1, np.abs(here).max()))
