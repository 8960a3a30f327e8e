"""The CUDA kernels of depthwise convolution and batch normalisation, and convolutions as products on a GPU.

They are right for channels and rows around the sizes of warps and blocks, in any order of the warps, and take a number
of launches that does not grow with the size of images or batches.
"""

import numpy as np
import pytest

from autograd import Tensor, kernels
from autograd.kernels import Geometry, im2col, parts
from minicait import nn
from tests import hostcuda
from tests.hostcuda.test_own_kernels import DTYPES, draw

pytestmark = pytest.mark.hostcuda
GEOMETRIES = [
    Geometry((3, 3), (1, 1), (1, 1)),
    Geometry((3, 2), (2, 1), (0, 2)),
    Geometry((1, 2), (3, 2), (2, 1)),
]


@pytest.fixture(autouse=True, params=["together", "forwards", "backwards"])
def _in_any_order_and_within_bounds(request):
    with hostcuda.schedule(request.param), hostcuda.guarded():
        yield


def close(got, want, factor=8):
    got = got.get()
    assert got.dtype == want.dtype and got.shape == want.shape
    tolerance = factor * np.finfo(want.dtype).eps * max(1, np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 31, 33, 129])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_depthwise(cp, geometry, channels, dtype):
    x, weight, bias = (
        draw(2, 5, 4, channels, dtype=dtype),
        draw(channels, 1, *geometry.kernel, dtype=dtype),
        draw(channels, dtype=dtype),
    )
    y = kernels.conv2d(x, weight, bias, geometry, channels)
    g = draw(*y.shape, dtype=dtype)
    dx = kernels.conv2d_grad_input(g, x.shape, weight, geometry, channels)
    dweight = kernels.conv2d_grad_weight(g, x, geometry, channels)
    there = [cp.asarray(a) for a in (x, weight, bias, g)]
    with hostcuda.counting() as count:
        got = (
            kernels.conv2d(*there[:3], geometry, channels),
            kernels.conv2d_grad_input(there[3], x.shape, there[1], geometry, channels),
            kernels.conv2d_grad_weight(there[3], there[0], geometry, channels),
        )
    own = [name for name in count.kernels if name.startswith("depthwise")]
    assert own == ["depthwise", "depthwise_input", "depthwise_weight"] and not count.gemms
    assert count.launches <= len(own) + 4  # the weight with its channels last, twice; bias in float32; a sum of parts
    for a, b in zip(got, (y, dx, dweight), strict=True):
        close(a, b)
    without = kernels.conv2d(x, weight, None, geometry, channels)
    close(kernels.conv2d(*there[:2], None, geometry, channels), without)


def test_depthwise_with_float32_bias_beside_float16(cp):
    x, weight, bias = draw(2, 3, 4, 5, dtype="float16"), draw(5, 1, 3, 3, dtype="float16"), draw(5)
    arguments = GEOMETRIES[0], 5
    want = kernels.conv2d(x, weight, bias, *arguments)
    close(kernels.conv2d(*map(cp.asarray, (x, weight, bias)), *arguments), want)


@pytest.mark.parametrize("lines", [1, 255, 257])
def test_a_depthwise_weight_gradient_over_many_lines(cp, lines):
    x, g = draw(2, lines, 1, 2, 3)
    geometry = Geometry((1, 1), (1, 1), (0, 0))
    got = kernels.conv2d_grad_weight(cp.asarray(g), cp.asarray(x), geometry, 3)
    close(got, kernels.conv2d_grad_weight(g, x, geometry, 3), 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, channels", [(2, 1), (63, 31), (65, 33), (130, 3), (64, 130)])
def test_batch_norm(cp, rows, channels, dtype):
    x, g = draw(2, rows, channels, dtype=dtype) + np.array(2, dtype)
    weight, bias = draw(2, channels, dtype=dtype)
    wide = np.promote_types(dtype, np.float32)
    mean, var = kernels.moments(x)
    rstd = (1 / np.sqrt(var + 0.1)).astype(wide)
    there = [cp.asarray(a) for a in (x, mean, rstd, weight, bias, g)]
    with hostcuda.counting() as count:
        close(kernels.moments(there[0])[0], mean)
        close(kernels.moments(there[0])[1], var, 16)
    assert count.kernels == ["batch_moments", "merge_moments"] * 2
    with hostcuda.counting() as count:
        close(kernels.batch_norm(*there[:5]), kernels.batch_norm(x, mean, rstd, weight, bias))
    assert count.by_kernel()["batch_norm"] == 1 and count.launches <= 3  # the weight times rstd, the bias in float32
    for constant in (False, True):
        want = kernels.batch_norm_grad(g, x, mean, rstd, weight, constant, [True] * 3)
        got = kernels.batch_norm_grad(there[5], *there[:4], constant, [True] * 3)
        for a, b in zip(got, want, strict=True):
            close(a, b, 32)


def test_batch_norm_with_more_rows_than_parts(cp, monkeypatch):
    monkeypatch.setattr(parts, "MOST_PARTS", 3)
    x = draw(1000, 5) + 30
    mean, var = kernels.moments(cp.asarray(x))
    np.testing.assert_allclose(mean.get(), x.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(var.get(), x.astype(float).var(0), rtol=1e-5)


@pytest.mark.parametrize("geometry", [*GEOMETRIES, Geometry((2, 2), (2, 2), (0, 0))], ids=str)
def test_launches_do_not_grow_with_images_and_batches(cp, geometry):
    counts = []
    for batch, size in ((2, 5), (3, 9)):
        x, weight = cp.asarray(draw(batch, size, size, 2)), cp.asarray(draw(3, 2, *geometry.kernel))
        with hostcuda.counting() as count:
            y = kernels.conv2d(x, weight, None, geometry, 1)
            kernels.conv2d_grad_input(y, x.shape, weight, geometry, 1)
            kernels.conv2d_grad_weight(y, x, geometry, 1)
        counts.append(count.launches)
        assert len(count.gemms) == 3 and not count.copies_to_host
    assert counts[0] == counts[1] <= 9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_strips(cp, geometry, dtype, monkeypatch):
    x, weight = draw(3, 7, 6, 2, dtype=dtype), draw(4, 2, *geometry.kernel, dtype=dtype)
    y = kernels.conv2d(x, weight, None, geometry, 1)
    g = draw(*y.shape, dtype=dtype)
    want = y, kernels.conv2d_grad_input(g, x.shape, weight, geometry, 1), kernels.conv2d_grad_weight(g, x, geometry, 1)
    x, weight, g = map(cp.asarray, (x, weight, g))
    for size in (1, 200, 1000):
        monkeypatch.setattr(im2col, "STRIP", size)
        got = (
            kernels.conv2d(x, weight, None, geometry, 1),
            kernels.conv2d_grad_input(g, x.shape, weight, geometry, 1),
            kernels.conv2d_grad_weight(g, x, geometry, 1),
        )
        for a, b in zip(got, want, strict=True):
            close(a, b, 16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [3, 8])
def test_images_with_their_channels_first_are_read_as_they_are(cp, channels, dtype):
    """A launch for the patches of each pass, and one for the way back; a weight of 27 values is padded."""
    geometry = Geometry((3, 3), (2, 2), (1, 1))
    x, weight = draw(2, channels, 9, 8, dtype=dtype), draw(5, channels, 3, 3, dtype=dtype)
    there = cp.asarray(x).transpose(0, 2, 3, 1)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = kernels.conv2d(x, weight, None, geometry, 1)
    g = draw(*y.shape, dtype=dtype)
    want = y, kernels.conv2d_grad_input(g, x.shape, weight, geometry, 1), kernels.conv2d_grad_weight(g, x, geometry, 1)
    weight, g = cp.asarray(weight), cp.asarray(g)
    with hostcuda.counting() as count:
        got = (
            kernels.conv2d(there, weight, None, geometry, 1),
            kernels.conv2d_grad_input(g, x.shape, weight, geometry, 1),
            kernels.conv2d_grad_weight(g, there, geometry, 1),
        )
    assert count.by_kernel()["im2col"] == 2 and count.by_kernel()["col2im"] == 1
    assert count.launches - 3 <= (6 if channels == 3 else 4)  # the weight as a matrix, twice; a sum over strips
    for a, b in zip(got, want, strict=True):
        close(a, b, 16)


def test_the_layers_do_not_synchronise(cp):
    conv, norm = nn.Conv2d(3, 4, 3, stride=2, padding=1).to("cuda"), nn.BatchNorm(4).to("cuda")
    x = Tensor(draw(2, 6, 6, 3)).to("cuda")
    conv(x)
    with hostcuda.counting() as count:
        norm(conv(x)).sum().backward()
    assert not count.copies_to_host and norm.num_batches_tracked.item() == 1
    here = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm(4)
    for layer, other in zip(here, (conv, norm), strict=True):
        layer.load_state_dict(other.state_dict())
    here[1].load_state_dict({name: p.numpy() for name, p in nn.BatchNorm(4).named_tensors()})
    here[1](here[0](x.numpy()))
    for (name, a), (_, b) in zip(norm.named_buffers(), here[1].named_buffers(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
