"""AdamW, the schedule, the norm, clipping and the average of the weights, each against its formula."""

import math
from itertools import pairwise

import numpy as np
import pytest

from autograd import kernels, ops
from autograd.backend import to_device
from minicait import nn
from minicait.machine import blas_threads
from minicait.optim import EMA, AdamW, FlatArrays, clip_gradients, global_norm, learning_rate
from minicait.optim.sweep import CHUNK
from tests import stand_in_cupy
from tests.train.helpers import small


class Line(nn.Module):
    def __init__(self, values, dtype="float32"):
        self.w = nn.Parameter(np.array(values, dtype))


def drawn(flat, seed, size=1.0):
    """Random gradients for all parameters, as one array."""
    gradients = flat.zeros()
    gradients.array[...] = size * np.random.default_rng(seed).standard_normal(gradients.array.size)
    return gradients


# ---- AdamW


def test_adamw_is_the_formula_of_the_paper():
    """Written out here once more, in float64."""
    model = Line([[1.0, -2.0]])
    optimiser = AdamW(model, lr=0.1, weight_decay=0.5, betas=(0.8, 0.9), eps=1e-3)
    p, m, v = np.array([[1.0, -2.0]]), 0, 0
    rng = np.random.default_rng(0)
    for t in range(1, 6):
        g = rng.standard_normal((1, 2))
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        p = p - 0.1 * 0.5 * p
        p = p - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
        optimiser.step({"w": g.astype(np.float32)})
        np.testing.assert_allclose(model.w.numpy(), p, rtol=1e-5)
        np.testing.assert_allclose(optimiser.mean["w"], m, rtol=1e-5)
        np.testing.assert_allclose(optimiser.square["w"], v, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_the_fused_step_is_the_one_that_is_written_out(dtype, tolerance, weight_decay):
    """`step` against `update`, for every parameter of a model, some of which decay."""
    model = small().astype(dtype)
    optimiser = AdamW(model, lr=0.03, weight_decay=weight_decay, betas=(0.8, 0.95), eps=1e-4)
    flat = optimiser.parameters
    want = {name: (p.numpy().copy(), 0 * p.numpy(), 0 * p.numpy()) for name, p in model.named_parameters()}
    slices, decayed = flat.layout.slices, flat.layout.decayed
    for t in range(1, 5):
        gradients = drawn(flat, seed=t)
        for name, (p, m, v) in want.items():
            decay = weight_decay if slices[name].start < decayed else 0.0
            want[name] = optimiser.update(p, gradients[name], m, v, t, decay)
        optimiser.step(gradients)
    for name, arrays in want.items():
        for got, own in zip((flat.weights, optimiser.mean, optimiser.square), arrays, strict=True):
            assert got[name].dtype == dtype
            np.testing.assert_allclose(got[name], own, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("threads", [1, 3])
def test_one_sweep_does_what_calls_by_name_do(threads, monkeypatch):
    """The same bits, for the optimiser and the average, in any chunks on any number of threads."""
    monkeypatch.setattr("minicait.optim.sweep.CHUNK", 50)  # so that there are many, for all threads
    models = [small(), small()]
    optimisers = [AdamW(model, 0.1, weight_decay=0.5) for model in models]
    averages = [EMA(model, 0.9) for model in models]
    for part in (optimisers[0], averages[0]):
        part.threads = threads
    for seed in range(3):
        flat = drawn(optimisers[0].parameters, seed)
        plain = {name: g.copy() for name, g in flat.items()}
        assert isinstance(flat, FlatArrays) and not isinstance(plain, FlatArrays)
        assert global_norm(flat) == pytest.approx(global_norm(plain), rel=1e-6)
        for gradients, optimiser, average in zip((flat, plain), optimisers, averages, strict=True):
            optimiser.step(gradients)
            average.update()
    for a, b in (
        (models[0].state_dict(), models[1].state_dict()),
        (optimisers[0].mean, optimisers[1].mean),
        (optimisers[0].square, optimisers[1].square),
        (averages[0].average, averages[1].average),
    ):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_large_and_scattered_gradients():
    """Weights are updated in chunks, and a gradient need not be contiguous."""
    size = 3 * CHUNK // 2
    gradient = np.random.default_rng(0).standard_normal((size, 2)).astype(np.float32)
    moved = []
    for g in (gradient, np.asfortranarray(gradient)):
        model = Line(np.ones((size, 2)))
        ema = EMA(model, 0.5)
        AdamW(model, 0.1, weight_decay=0.5).step({"w": g})
        ema.update()
        moved.append((model.w.data.copy(), ema.average["w"]))
    few = Line(np.ones((4, 2)))
    AdamW(few, 0.1, weight_decay=0.5).step({"w": gradient[-4:]})
    np.testing.assert_array_equal(moved[0][0], moved[1][0])
    np.testing.assert_array_equal(moved[0][1], moved[1][1])
    np.testing.assert_array_equal(moved[0][0][-4:], few.w.data)


def test_without_arguments_it_moves_along_every_grad_at_its_own_rate():
    model = Line([[3.0]])
    AdamW(model, lr=0.1).step()
    assert model.w.item() == 3  # it has no .grad
    optimiser = AdamW(model, lr=0.1)
    (model.w * model.w).backward()
    optimiser.step()
    assert model.w.item() == pytest.approx(3 * (1 - 0.1 * 0.05) - 0.1, rel=1e-5)
    optimiser.zero_grad()
    assert model.w.grad is None


def test_a_rate_given_to_a_step_stays():
    model = Line([0.0])
    optimiser = AdamW(model, lr=0.1)
    optimiser.step({"w": np.float32([1])}, lr=0.5)
    assert model.w.item() == pytest.approx(-0.5) and optimiser.lr == 0.5 and optimiser.steps == 1


def test_parameters_without_a_gradient_stay():
    model = small()
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    optimiser = AdamW(model, 0.1, weight_decay=0.5)
    optimiser.step({"head.weight": np.ones((10, 12), np.float32)})
    moved = {name for name, p in model.named_parameters() if (p.numpy() != before[name]).any()}
    assert moved == {"head.weight"}
    with pytest.raises(KeyError, match="nose"):
        optimiser.step({"nose": np.ones(3, np.float32)})


def test_learning_a_line():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 3)).astype(np.float32)
    y = (x @ np.float32([1, -2, 3]))[:, None]
    layer = nn.Linear(3, 1)
    optimiser = AdamW(layer, lr=0.1, weight_decay=0)
    for _ in range(200):
        optimiser.zero_grad()
        error = layer(x) - y
        (error * error).mean().backward()
        optimiser.step()
    np.testing.assert_allclose(layer.weight.numpy(), [[1, -2, 3]], atol=1e-2)
    assert ops.abs(layer.bias).item() < 1e-2


# ---- the average of the weights


class Counting(nn.Module):
    """A weight, and two buffers: one that is averaged, one that is not floating-point."""

    def __init__(self):
        self.w = nn.Parameter(np.float32([0.0]))
        self.running = nn.Buffer(np.float32([0.0, 0.0]))
        self.count = nn.Buffer(np.int64([0]))


def test_ema_averages_weights_and_buffers_and_is_applied():
    model = Counting()
    ema = EMA(model, decay=0.5)
    average = 0.0
    for t, value in enumerate([1.0, 2.0, 3.0], 1):
        model.w.data[...], model.running.data[...], model.count.data[...] = value, 2 * value, t
        ema.update()
        decay = min(0.5, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * value
    assert ema.average["w"] == pytest.approx(average) and ema.steps == 3
    assert ema.buffers["running"].tolist() == pytest.approx([2 * average] * 2) and ema.buffers["count"] == 3
    own = [tensor.data for _, tensor in model.named_tensors()]
    with pytest.raises(KeyError), ema.applied():
        assert model.w.item() == pytest.approx(average) and model.running.numpy()[0] == pytest.approx(2 * average)
        raise KeyError
    assert model.w.item() == 3 and model.running.numpy().tolist() == [6, 6]
    assert all(tensor.data is data for (_, tensor), data in zip(model.named_tensors(), own, strict=True))


def test_ema_begins_with_the_weights():
    model = small()
    ema = EMA(model, 0.9)
    for _ in range(5):
        ema.update()
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(ema.average[name], p.numpy())
        assert not np.shares_memory(ema.average[name], p.data)


# ---- the schedule, the norm, clipping


def test_learning_rate():
    rates = [learning_rate(step, 100, 10, 1e-3, 1e-6, 1e-5) for step in range(101)]
    assert rates[0] == 1e-6 and rates[5] == pytest.approx((1e-3 + 1e-6) / 2)
    assert rates[10] == pytest.approx(1e-5 + (1e-3 - 1e-5) * 0.5 * (1 + math.cos(math.pi * 0.1)))
    assert rates[100] == pytest.approx(1e-5) and learning_rate(500, 100, 10, 1e-3) == pytest.approx(1e-5)
    assert all(a < b for a, b in pairwise(rates[:10]))
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert learning_rate(0, 10, 0, 1e-3) == 1e-3


def test_clipping():
    gradients = {"a": np.float32([3, 0]), "b": np.float32([[4.0]])}
    assert clip_gradients(gradients, 10) == 5 and gradients["a"].tolist() == [3, 0]
    assert clip_gradients(gradients, 1) == 5
    assert global_norm(gradients) == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(gradients["a"], [0.6, 0], rtol=1e-5)
    flat = drawn(AdamW(small(), 0.1).parameters, seed=0)
    before, norm = flat.array.copy(), global_norm(flat)
    assert clip_gradients(flat, 1.0, norm) == norm
    np.testing.assert_allclose(flat.array, before / norm, rtol=1e-5)


@pytest.mark.parametrize("flat", [True, False], ids=["one array", "by name"])
def test_gradients_that_float32_cannot_square(flat):
    """Their norm is right, they are clipped, and the weights move as along smaller ones."""
    model = small()
    optimiser = AdamW(model, 1e-2)
    huge = drawn(optimiser.parameters, 0, 1e25)
    gradients = huge if flat else dict(huge)
    assert clip_gradients(gradients, 1.0) == pytest.approx(1e25 * math.sqrt(huge.array.size), rel=0.1)
    assert global_norm(gradients) == pytest.approx(1, rel=1e-5)
    optimiser.step(gradients)
    assert all(np.isfinite(p.numpy()).all() for p in model.parameters())


def test_the_norm_is_finite_exactly_if_all_gradients_are():
    gradients = {"a": np.full(1000, 3e38, np.float32), "b": np.zeros(CHUNK + 7, np.float32)}
    assert global_norm(gradients) == pytest.approx(3e38 * math.sqrt(1000), rel=1e-6)
    for bad in (np.nan, np.inf, -np.inf):
        gradients["b"][-1] = bad
        assert not math.isfinite(global_norm(gradients))


def test_the_norm_does_not_depend_on_the_threads_of_blas():
    gradients = {"w": np.random.default_rng(0).standard_normal(3 * CHUNK + 7).astype(np.float32)}
    norms = []
    for count in (1, 2):
        with blas_threads(count):
            norms.append(global_norm(gradients))
    assert norms[0] == norms[1]


def test_on_another_device(monkeypatch):
    results = []
    with stand_in_cupy.installed(monkeypatch):
        for device in ("cpu", "cuda"):
            model = small().to(device)
            optimiser, ema = AdamW(model, 1e-2), EMA(model, 0.9)
            for seed in range(3):
                here, gradients = drawn(AdamW(small(), 1e-2).parameters, seed), optimiser.parameters.zeros()
                gradients.array[...] = to_device(here.array, device)
                clip_gradients(gradients, 1.0)
                optimiser.step(gradients)
                ema.update()
            results.append([to_device(a, "cpu") for a in (optimiser.parameters.array, ema.average.array)])
            assert float(kernels.squares(gradients.array).sum()) == pytest.approx(1, rel=1e-4)
    for here, there in zip(*results, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-6)
