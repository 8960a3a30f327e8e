"""conv2d: values of an independent convolution and of PyTorch, strips of any size, and what is computed and kept."""

import json
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, modes, ops
from autograd.kernels import convolution
from tests import strategies as some
from tests.golden.recipe import FOLDER

RNG = np.random.default_rng(0)


def naive(x, weight, bias, stride, padding, groups):
    """One output value at a time, channels first."""
    (batch, _, height, width), (outputs, channels, kh, kw) = x.shape, weight.shape
    (down, right), (top, left) = stride, padding
    rows, columns = (height + 2 * top - kh) // down + 1, (width + 2 * left - kw) // right + 1
    y = np.zeros((batch, outputs, rows, columns))
    for b, o, i, j in product(*map(range, y.shape)):
        first = o // (outputs // groups) * channels
        for c, m, n in product(range(channels), range(kh), range(kw)):
            h, w = i * down + m - top, j * right + n - left
            if 0 <= h < height and 0 <= w < width:
                y[b, o, i, j] += x[b, first + c, h, w] * weight[o, c, m, n]
        y[b, o, i, j] += 0 if bias is None else bias[o]
    return y


@st.composite
def convolutions(draw):
    """Arrays x, weight and perhaps bias, channels first, and options."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, padding = draw(pair), draw(pair), tuple(n - 1 for n in draw(pair))
    groups = draw(st.integers(1, 3))
    channels = draw(st.integers(1, 2))
    outputs = groups * draw(st.integers(1, 2))
    size = [max(1, k - 2 * p) + draw(st.integers(0, 4)) for k, p in zip(kernel, padding, strict=True)]
    x = draw(some.arrays((draw(st.integers(0, 3)), groups * channels, *size)))
    weight = draw(some.arrays((outputs, channels, *kernel)))
    bias = draw(st.one_of(st.none(), some.arrays((outputs,))))
    return x, weight, bias, {"stride": stride, "padding": padding, "groups": groups}


def last(x):
    return x.transpose(0, 2, 3, 1)


@given(drawn=convolutions(), strip=st.integers(1, 2000))
def test_any_convolution(drawn, strip):
    x, weight, bias, options = drawn
    want = naive(x, weight, bias, **options)
    inputs = [x, weight] if bias is None else [x, weight, bias]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "CPU_STRIP", strip)
        np.testing.assert_allclose(ops.conv2d(*inputs, **options).numpy(), want, rtol=1e-12, atol=1e-12)
        ag.check_grads(lambda *xs: ops.conv2d(*xs, **options), inputs, directions=1)
        inputs[0] = last(x)
        y = ops.conv2d(*inputs, **options, channels_last=True)
        np.testing.assert_allclose(y.numpy(), last(want), rtol=1e-12, atol=1e-12)
        ag.check_grads(lambda *xs: ops.conv2d(*xs, **options, channels_last=True), inputs, directions=1)


def results(inputs, g, **options):
    tensors = [Tensor(x, requires_grad=True) for x in inputs]
    y = ops.conv2d(*tensors, **options)
    return [y.numpy(), *(t.numpy() for t in ag.grad(y, tensors, g))]


@pytest.mark.parity
@given(drawn=convolutions())
def test_any_convolution_equals_pytorch(drawn):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    x, weight, bias, options = drawn
    if not len(x):
        return
    inputs = [x, weight] if bias is None else [x, weight, bias]
    theirs = [torch.tensor(a.copy(), requires_grad=True) for a in inputs]
    y = torch.nn.functional.conv2d(*theirs, **options)
    g = np.random.default_rng(1).standard_normal(y.shape)
    wanted = [y, *torch.autograd.grad(y, theirs, torch.from_numpy(g))]
    for got, want in zip(results(inputs, g, **options), wanted, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("number", range(7))
def test_golden_values(number):
    with np.load(FOLDER / "operations.npz") as golden:
        case = {key.split(":")[1]: golden[key] for key in golden.files if key.startswith(f"conv{number}:")}
    options = json.loads(str(case["config"]))
    names = [name for name in ("x", "w", "b") if name in case]
    inputs, wanted = [case[name] for name in names], [case["y"], *(case[f"grad_{name}"] for name in names)]
    for got, want in zip(results(inputs, case["g"], **options), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())
    inputs[0], wanted[0], wanted[1] = last(case["x"]), last(case["y"]), last(case["grad_x"])
    for got, want in zip(results(inputs, last(case["g"]), **options, channels_last=True), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


@pytest.mark.parametrize("options", [{}, {"padding": 3}, {"stride": 2, "padding": 3}, {"groups": 16}], ids=str)
def test_windows_never_exist_all_at_once(options, monkeypatch):
    monkeypatch.setattr(convolution, "CPU_STRIP", 1 << 16)
    x = RNG.standard_normal((3, 50, 50, 16), dtype=np.float32)
    weight = RNG.standard_normal((16, 1 if "groups" in options else 16, 7, 7), dtype=np.float32)
    x, weight = Tensor(x, requires_grad=True), Tensor(weight, requires_grad=True)
    tracemalloc.start()
    try:
        y = ops.conv2d(x, weight, **options, channels_last=True)
        ag.grad(y, [x, weight], y.data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    windows = 49 * x.data.nbytes / (4 if "stride" in options else 1)
    assert 3 * peak < windows  # y, dx and copies of both with padding are a few times x


def test_only_what_is_needed_is_computed_and_kept(monkeypatch):
    x, weight = Tensor(RNG.standard_normal((2, 5, 6, 3))), Tensor(RNG.standard_normal((4, 3, 3, 3)))
    weight.requires_grad = True
    y = ops.conv2d(x, weight, channels_last=True)
    assert [a.shape for a in y.node.saved if isinstance(a, np.ndarray)] == [x.shape]
    monkeypatch.setattr("autograd.kernels.conv2d_grad_input", None)
    y.sum().backward()
    x.requires_grad, weight.requires_grad = True, False
    y = ops.conv2d(x, weight, channels_last=True)
    assert [a.shape for a in y.node.saved if isinstance(a, np.ndarray)] == [weight.shape]
    monkeypatch.undo()
    monkeypatch.setattr("autograd.kernels.conv2d_grad_weight", None)
    y.sum().backward()


@pytest.mark.parametrize("groups", [1, 2])
def test_the_gradient_of_a_weight_adds_up_in_float32(groups, monkeypatch):
    """4,608 products of ones: float16 would get stuck at 2,048."""
    monkeypatch.setattr(convolution, "CPU_STRIP", 1000)
    x = Tensor(np.ones((2, 48, 48, 2), np.float32))
    weight, bias = (Tensor(np.ones(s, np.float32), requires_grad=True) for s in [(2, 2 // groups, 1, 1), (2,)])
    with ag.autocast():
        y = ops.conv2d(x, weight, bias, groups=groups, channels_last=True)
        dweight, dbias = ag.grad(y, [weight, bias], np.ones(y.shape, np.float16))
    assert y.dtype == np.float16 and dweight.dtype == dbias.dtype == np.float32
    assert (dweight.numpy() == 4608).all() and (dbias.numpy() == 4608).all()


def test_numpy_integers_are_integers():
    x, weight, n = np.ones((1, 2, 5, 5), np.float32), np.ones((2, 1, 3, 3), np.float32), np.int64(2)
    assert ops.conv2d(x, weight, stride=n, padding=[n, np.int32(1)], groups=n).shape == (1, 2, 4, 3)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda x, w: ops.conv2d(x[0], w), r"conv2d: x and weight need four axes, got shapes \(4, 5, 5\)"),
        (lambda x, w: ops.conv2d(x, w[0]), r"conv2d: x and weight need four axes, got .* \(4, 3, 3\)"),
        (lambda x, w: ops.conv2d(x, w, groups=2), r"got \(6, 4, 3, 3\) for 4 channels with groups=2"),
        (lambda x, w: ops.conv2d(x, w[:, :1], groups=4), "outputs divisible by groups; got .* groups=4"),
        (lambda x, w: ops.conv2d(x, w[:0]), "none of them zero"),
        (lambda x, w: ops.conv2d(x, w, np.ones(4)), r"bias must have shape \(6,\) .*, got \(4,\)"),
        (lambda x, w: ops.conv2d(x[:, :, :2], w), r"kernel of \(3, 3\) pixels does not fit into .* of \(2, 5\) pixels"),
        (lambda x, w: ops.conv2d(x, w, stride=0), "conv2d: stride must be an integer of at least 1, .* got 0"),
        (lambda x, w: ops.conv2d(x, w, stride=(1, 1, 1)), r"stride must be .* or a pair of them, got \(1, 1, 1\)"),
        (lambda x, w: ops.conv2d(x, w, padding=(0, -1)), r"padding must be .* at least 0, .*, got \(0, -1\)"),
        (lambda x, w: ops.conv2d(x, w, padding="same"), "padding must be an integer .* got 'same'"),
        (lambda x, w: ops.conv2d(x, w, groups=0), "conv2d: groups must be a positive integer, got 0"),
    ],
)
def test_mistakes(call, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        call(np.ones((2, 4, 5, 5), np.float32), np.ones((6, 4, 3, 3), np.float32))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("groups", [1, 4])
def test_threads_that_share_out_the_samples(groups):
    """The same bits for any number of threads, and, but for the order of sums over samples, what one call computes."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((11, 6, 7, 4), (4, 4 // groups, 3, 3), (4,)))

    def run(threads):
        tensors = [Tensor(a, requires_grad=True) for a in (x, w, b)]
        with modes.changed(sample_threads=threads):
            y = ops.conv2d(*tensors, stride=2, padding=1, groups=groups, channels_last=True)
            return [y.numpy(), *(g.numpy() for g in ag.grad(y, tensors, np.cos(y.numpy())))]

    together, first = run(0), run(1)
    for got, want in zip(first, together, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for threads in (2, 3, 16):
        for got, want in zip(run(threads), first, strict=True):
            np.testing.assert_array_equal(got, want)
