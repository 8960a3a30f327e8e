"""batch_norm: values of NumPy and PyTorch, accurate over many rows, and statistics for whoever observes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd import Tensor, ops
from tests import strategies as some
from tests.golden.recipe import FOLDER

RNG = np.random.default_rng(0)


def naive(x, weight, bias, axis, eps, mean=None, var=None):
    rows = np.moveaxis(x, axis, -1)
    axes = tuple(range(x.ndim - 1))
    mean, var = (rows.mean(axes), rows.var(axes)) if mean is None else (mean, var)
    return np.moveaxis((rows - mean) / np.sqrt(var + eps) * weight + bias, -1, axis)


@st.composite
def normalisations(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    if np.prod(shape) == shape[axis]:
        shape.insert(axis % len(shape), 3)
        axis = axis % (len(shape) - 1) + 1
    parameters = [draw(some.arrays((shape[axis],))) for _ in range(3)]
    return draw(some.arrays(tuple(shape))), *parameters, np.square(draw(some.arrays((shape[axis],)))), axis


@given(drawn=normalisations(), offset=st.sampled_from([0, 1, 10, -100]), given_statistics=st.booleans())
def test_any_normalisation(drawn, offset, given_statistics):
    x, weight, bias, mean, var, axis = drawn
    options = {"axis": axis, "eps": 0.1, **({"mean": mean, "var": var} if given_statistics else {})}
    x = x + offset
    y = ops.batch_norm(x, weight, bias, **options)
    np.testing.assert_allclose(y.numpy(), naive(x, weight, bias, **options), rtol=1e-9, atol=1e-9)
    ag.check_grads(lambda *xs: ops.batch_norm(*xs, **options), [x, weight, bias], directions=1, float32_tolerance=None)


def results(inputs, g, **options):
    tensors = [Tensor(x, requires_grad=True) for x in inputs]
    y = ops.batch_norm(*tensors, **options)
    return [y.numpy(), *(t.numpy() for t in ag.grad(y, tensors, g))]


@pytest.mark.parity
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_equals_pytorch(shape, training):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    inputs = [RNG.standard_normal(shape), *RNG.standard_normal((2, 3))]
    mean, var = RNG.standard_normal(3), RNG.uniform(0.5, 2, 3)
    theirs = [torch.tensor(a, requires_grad=True) for a in inputs]
    running = torch.tensor(mean), torch.tensor(var)
    y = torch.nn.functional.batch_norm(theirs[0], *running, *theirs[1:], training=training, momentum=0.3)
    g = RNG.standard_normal(shape)
    wanted = [y, *torch.autograd.grad(y, theirs, torch.from_numpy(g))]
    seen = []
    options = {"observe": lambda *args: seen.append(args)} if training else {"mean": mean, "var": var}
    for got, want in zip(results(inputs, g, **options), wanted, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12, atol=1e-12)
    if training:
        ((batch_mean, batch_var, count),) = seen
        assert count == np.prod(shape) // 3
        np.testing.assert_allclose(0.7 * mean + 0.3 * batch_mean, running[0].numpy(), rtol=1e-12)
        np.testing.assert_allclose(0.7 * var + 0.3 * batch_var * count / (count - 1), running[1].numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["bn2d", "bn1d"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_golden_values(name, mode):
    with np.load(FOLDER / "operations.npz") as golden:
        case = {key.split(":")[1]: golden[key] for key in golden.files if key.startswith(f"{name}:")}
    names = "x", "weight", "bias"
    options = {} if mode == "train" else {"mean": case["running_mean"], "var": case["running_var"]}
    wanted = [case[f"y_{mode}"], *(case[f"grad_{key}_{mode}"] for key in names)]
    for got, want in zip(results([case[key] for key in names], case["g"], **options), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


@pytest.mark.parametrize("offset", [0, 1, 3, 1000])
@pytest.mark.parametrize("rows", [100_003, 131_072])
def test_many_rows_are_added_accurately(rows, offset):
    """Also where the mean is large beside the deviations, in which case x^2 must not be added up."""
    x, g = RNG.standard_normal((2, rows, 3), dtype=np.float32) + np.float32([[[offset]], [[0]]])
    weight, bias = RNG.standard_normal((2, 3), dtype=np.float32)
    seen = []
    got = results([x, weight, bias], g, axis=-1, observe=lambda *args: seen.append(args))
    wide = [a.astype(np.float64) for a in (x, weight, bias)]
    wanted = results(wide, g.astype(np.float64), axis=-1)
    ((mean, var, count),) = seen
    assert count == rows and mean.dtype == var.dtype == np.float32
    np.testing.assert_allclose(mean, wide[0].mean(0), rtol=3e-7, atol=1e-6)
    np.testing.assert_allclose(var, wide[0].var(0), rtol=3e-6)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * max(1, offset / 20) * max(np.abs(b).max(), rows**0.5))


def test_a_channel_that_is_constant():
    x = np.full((50, 2), 7, np.float32)
    x[:, 1] = 0
    y, dx, dweight, dbias = results([x, np.float32([2, 3]), np.float32([4, 5])], np.ones((50, 2), np.float32))
    np.testing.assert_array_equal(y, np.broadcast_to(np.float32([4, 5]), (50, 2)))
    assert not dx.any() and not dweight.any() and dbias.tolist() == [50, 50]


def test_a_checkpoint_observes_once():
    x = Tensor(RNG.standard_normal((6, 3)), requires_grad=True)
    seen = []
    weight, bias = np.ones(3), np.zeros(3)
    y = ag.checkpoint(lambda t: ops.batch_norm(t.exp(), weight, bias, observe=lambda *args: seen.append(args)).exp(), x)
    y.sum().backward()
    assert len(seen) == 1
    want = x.detach()
    want.requires_grad = True
    ops.batch_norm(want.exp(), weight, bias).exp().sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), want.grad.numpy())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_autocast_keeps_the_dtype_of_x_and_full_statistics(dtype):
    """The sum of all values of a channel is beyond float16."""
    x = Tensor((RNG.standard_normal((5000, 3)) * 4 + 20).astype(dtype), requires_grad=True)
    weight, bias = (Tensor(a.astype(np.float32), requires_grad=True) for a in RNG.standard_normal((2, 3)))
    g = RNG.standard_normal(x.shape).astype(dtype)
    seen = []
    with ag.autocast():
        y = ops.batch_norm(x, weight, bias, observe=lambda *args: seen.append(args))
        gradients = ag.grad(y, [x, weight, bias], g)
    assert [a.dtype for a in (y, *gradients)] == [dtype, dtype, np.float32, np.float32]
    assert {a.dtype for a in seen[0][:2]} == {np.dtype(np.float32)}
    wide = [a.numpy().astype(np.float64) for a in (x, weight, bias)]
    for got, want in zip((y, *gradients), results(wide, g.astype(np.float64)), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=4e-3 * np.abs(want).max())


@pytest.mark.parametrize(
    "call, kind, sentence",
    [
        (lambda x, p: ops.batch_norm(x, p, None), TypeError, "weight and bias must be arrays, got None"),
        (lambda x, p: ops.batch_norm(x, p, p, mean=p), TypeError, "expected both mean and var, or neither"),
        (lambda x, p: ops.batch_norm(x, p, p, p, p[:2]), ValueError, r"var must have shape \(3,\), got \(2,\)"),
        (lambda x, p: ops.batch_norm(x, p, p, axis=2), ValueError, "axis 2 is out of range for 2 axes"),
        (lambda x, p: ops.batch_norm(x, p, p[:2]), ValueError, r"bias must have shape \(3,\) to match axis 1 of x \(4"),
        (lambda x, p: ops.batch_norm(x[:1], p, p), ValueError, r"need at least two values .*, got shape \(1, 3\)"),
        (lambda x, p: ops.batch_norm(x[0, 0], p, p), ValueError, r"x needs an axis of channels, got shape \(\)"),
        (lambda x, p: ops.batch_norm(x, p, p, Tensor(p, requires_grad=True), p), TypeError, "mean gets no gradient"),
        (lambda x, p: ops.batch_norm(x.astype(int), p.astype(int), p.astype(int)), TypeError, "floating-point"),
    ],
)
def test_mistakes(call, kind, sentence):
    with pytest.raises(kind, match=f"batch_norm: .*{sentence}") as error:
        call(np.ones((4, 3), np.float32), np.ones(3, np.float32))
    assert "\n" not in str(error.value)
