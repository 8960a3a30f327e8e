"""Talking heads in one launch: any number of heads up to 16 and of keys, in any order of the warps, within bounds."""

import numpy as np
import pytest

from autograd import cuda, kernels
from autograd.kernels import fused_heads
from autograd.kernels.fused_heads import empty_maps, mix_softmax_mix, mix_softmax_mix_grad
from autograd.kernels.heads import heads_apart, heads_together
from tests import hostcuda

pytestmark = pytest.mark.hostcuda
DTYPES = ["float16", "float32", "float64"]
SIZES = [(1, 1), (1, 40), (2, 5), (3, 33), (4, 64), (4, 196), (5, 70), (8, 50), (8, 130), (16, 20), (16, 70)]
LARGE = [(4, 784), (8, 576), (16, 784)]


@pytest.fixture(autouse=True, params=["together", "forwards", "backwards"])
def _in_any_order_and_within_bounds(request):
    with hostcuda.schedule(request.param), hostcuda.guarded():
        yield


def draw(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reference(scores, weight_l, weight_w, d, scale):
    """Mixed maps; gradients for the scores, weight_l and weight_w: in float64."""
    scores, weight_l, weight_w, d = (x.astype("float64") for x in (scores, weight_l, weight_w, d))
    mixed_scores = np.einsum("ho,boqk->bhqk", scale * weight_l, scores)
    p = np.exp(mixed_scores - mixed_scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("oh,boqk->bhqk", weight_w, d)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    return (
        np.einsum("ho,boqk->bhqk", weight_w, p),
        np.einsum("oh,boqk->bhqk", scale * weight_l, ds),
        scale * np.einsum("bhqk,boqk->ho", ds, scores),
        np.einsum("bhqk,boqk->ho", d, p),
    )


def there(cp, maps):
    result = empty_maps(cp.empty(0, maps.dtype), maps.shape)
    result[...] = cp.asarray(maps)
    return result


def close(got, want, dtype):
    got = got.get()
    tolerance = 20 * np.finfo(dtype).eps * max(1, np.abs(want).max())
    np.testing.assert_allclose(got.astype("float64"), want, rtol=0, atol=tolerance)


def check(cp, heads, keys, dtype, batch=2, queries=3):
    scores, d = draw(batch, heads, queries, keys, dtype=dtype), draw(batch, heads, queries, keys, dtype=dtype, seed=1)
    wide = np.promote_types(dtype, "float32")
    weight_l, weight_w = draw(2, heads, heads, dtype=wide, seed=2)
    mixed, dscores, dweight_l, dweight_w = reference(scores, weight_l, weight_w, d, 0.3)
    weights = cp.asarray(weight_l), cp.asarray(weight_w), 0.3
    with hostcuda.counting() as count:
        forward = mix_softmax_mix(there(cp, scores), *weights)
    assert count.by_kernel()["mix_softmax_mix"] == 1
    close(forward, mixed, dtype)
    maps, gradient = there(cp, scores), there(cp, d)
    with hostcuda.counting() as count:
        found = mix_softmax_mix_grad(maps, gradient, *weights)
    assert count.kernels == ["mix_softmax_mix_grad", "merge_sums"] and not count.gemms
    for got, want in zip((gradient, maps, *found), (mixed, dscores, dweight_l, dweight_w), strict=True):
        close(got, want, dtype)
    again = mix_softmax_mix_grad(there(cp, scores), there(cp, d), *weights)
    assert all(np.array_equal(a.get(), b.get()) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, keys", SIZES)
def test_mixed_maps_and_all_gradients(cp, heads, keys, dtype):
    check(cp, heads, keys, dtype)


@pytest.mark.parametrize("heads, keys", LARGE)
def test_the_largest_images(cp, heads, keys):
    """784 patches of 448 pixels, and up to 16 heads."""
    check(cp, heads, keys, "float32", batch=1, queries=2)


def test_teams_take_several_rows_each(cp, monkeypatch):
    monkeypatch.setattr(fused_heads, "MOST_BLOCKS", 2)
    check(cp, 4, 7, "float32", batch=3, queries=7)
    check(cp, 8, 70, "float32", batch=2, queries=3)


def test_scores_that_overflow_where_they_are_not_shifted(cp):
    scores = draw(1, 2, 3, 4, dtype="float32") * 300
    one = cp.asarray(np.eye(2, dtype="float32"))
    want, *_ = reference(scores, np.eye(2), np.eye(2), scores, 1.0)
    close(mix_softmax_mix(there(cp, scores), one, one, 1.0), want, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch, tokens, heads, size, count", [(1, 1, 1, 1, 1), (2, 5, 3, 4, 3), (3, 7, 2, 48, 1)])
def test_heads_apart_and_together(cp, batch, tokens, heads, size, count, dtype):
    x = draw(batch, tokens, count * heads * size, dtype=dtype)
    with hostcuda.counting() as counted:
        apart = heads_apart(cp.asarray(x), heads, count)
        together = heads_together(apart)
    assert counted.kernels == ["heads_apart", "heads_together"]
    assert np.array_equal(apart.get(), heads_apart(x, heads, count)) and np.array_equal(together.get(), x)
    factor, shift = draw(heads, dtype="float32"), draw(batch, heads, 1, size, dtype="float32")
    shifted = heads_together(apart, count - 1, cp.asarray(factor), cp.asarray(shift))
    want = heads_apart(x.astype("float64"), heads, count).copy()
    want[count - 1] += factor[:, None, None].astype("float64") * shift
    close(shifted, heads_together(want), dtype)


@pytest.mark.parametrize("add", [False, True])
def test_arrays_are_gathered_in_one_launch(cp, add):
    sizes = [3, 5000, 1, 4096, 9000]
    arrays = [draw(size, dtype="float32", seed=size) for size in sizes]
    before = [draw(size, dtype="float32", seed=size + 1) for size in sizes]
    outs = [cp.asarray(out) for out in before]
    assert cuda.device_id("cuda:0") == 0  # which computes a little, once
    with hostcuda.counting() as count:
        kernels.gather([cp.asarray(a) for a in arrays], outs, add)
    assert count.kernels == ["gather"]
    for out, array, old in zip(outs, arrays, before, strict=True):
        assert np.array_equal(out.get(), array + old if add else array)
