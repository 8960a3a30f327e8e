"""AdamW, the schedule, clipping and the average of the weights, each against its formula."""

import copy
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest

from autograd import ops
from minicait import nn
from minicait.machine import blas_threads
from minicait.models.cait import CaiT
from minicait.optim import CHUNK, EMA, AdamW, clip_gradients, global_norm, learning_rate
from minicait.optim.parameters import Flat, flatten, is_decayed, zeros_like


class Line(nn.Module):
    def __init__(self, values):
        self.w = nn.Parameter(np.array(values, np.float32))


def test_adamw_follows_its_formula():
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


def test_adamw_uses_grad_and_leaves_what_has_none():
    model = Line([[3.0]])
    AdamW(model, lr=0.1).step()
    assert model.w.item() == 3
    optimiser = AdamW(model, lr=0.1)
    (model.w * model.w).backward()
    optimiser.step()
    assert model.w.item() == pytest.approx(3 * (1 - 0.1 * 0.05) - 0.1, rel=1e-5)
    optimiser.zero_grad()
    assert model.w.grad is None


def test_what_is_decayed():
    model = CaiT(img_size=8, patch_size=4, dim=8, heads=2, depth=1, num_classes=3)
    kept = {name for name, p in model.named_parameters() if not is_decayed(name, p.shape)}
    assert "cls_token" in kept and "pos_embed" in kept
    assert all(
        name.endswith(("bias", "gamma_1", "gamma_2", "cls_token", "pos_embed")) or "norm" in name for name in kept
    )
    decayed = {name for name, _ in model.named_parameters()} - kept
    assert "blocks.0.attn.proj_l.weight" in decayed and "patch_embed.proj.weight" in decayed
    assert all(name.endswith("weight") and "norm" not in name for name in decayed)


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
    huge = {"a": np.full(4, 1e25, np.float32)}  # whose squares float32 cannot hold
    assert clip_gradients(huge, 1) == pytest.approx(2e25)


def test_ema_averages_and_is_applied():
    model = Line([0.0])
    ema = EMA(model, decay=0.5)
    values = [1.0, 2.0, 3.0]
    average = 0.0
    for t, value in enumerate(values, 1):
        model.w.data[...] = value
        ema.update()
        decay = min(0.5, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * value
    assert ema.average["w"][0] == pytest.approx(average)
    with pytest.raises(KeyError), ema.applied():
        assert model.w.item() == pytest.approx(average)
        raise KeyError
    assert model.w.item() == 3


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


def test_large_and_scattered_arrays_move_as_small_ones_do():
    """Weights are worked on in chunks; a gradient that is not contiguous, whole."""
    size = 3 * CHUNK // 2
    gradient = np.random.default_rng(0).standard_normal((size, 2)).astype(np.float32)
    moved = []
    for g in (gradient, np.asfortranarray(gradient)):
        model = Line(np.ones((size, 2), np.float32))
        ema = EMA(model, 0.5)
        AdamW(model, 0.1, weight_decay=0.5).step({"w": g})
        ema.update()
        moved.append((model.w.data.copy(), ema.average["w"]))
    few = Line(np.ones((size, 2), np.float32)[-4:])
    AdamW(few, 0.1, weight_decay=0.5).step({"w": gradient[-4:]})
    np.testing.assert_array_equal(moved[0][0], moved[1][0])
    np.testing.assert_array_equal(moved[0][1], moved[1][1])
    np.testing.assert_array_equal(moved[0][0][-4:], few.w.data)


def small():
    return CaiT(img_size=8, patch_size=4, dim=8, heads=2, depth=1, num_classes=3)


def test_weights_as_one_array():
    model = small()
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    flat = flatten(model)
    assert flatten(model) is flat and list(flat) == list(before)
    for name, p in model.named_parameters():
        assert np.shares_memory(p.data, flat.whole) and p.data is flat[name]
        np.testing.assert_array_equal(p.data, before[name])
    flat.whole[: flat.decayed] = 0
    assert all((p.data == 0).all() == is_decayed(name, p.shape) or name.endswith("bias") or "token" in name
               for name, p in model.named_parameters())  # fmt: skip
    assert flat.decayed == sum(p.size for name, p in model.named_parameters() if is_decayed(name, p.shape))
    model.norm.weight.data = model.norm.weight.data * 2
    again = flatten(model)
    assert again is not flat and (again["norm.weight"] == 2).all()
    model.norm.weight.data = model.norm.weight.data.astype(np.float64)
    assert flatten(model) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_one_sweep_does_what_calls_by_name_do(threads, monkeypatch):
    """The same bits, for the optimiser, the norm, clipping and the average."""
    monkeypatch.setattr("minicait.optim.CHUNK", 50)  # so that there are many, for all threads
    rng = np.random.default_rng(1)
    models = [small(), small()]
    optimisers = [AdamW(model, 0.1, weight_decay=0.5) for model in models]
    averages = [EMA(model, 0.9) for model in models]
    for _ in range(3):
        flat = zeros_like(models[0].state_dict())
        flat.whole[...] = rng.standard_normal(flat.whole.size)
        plain = {name: g.copy() for name, g in flat.items()}
        assert global_norm(flat) == pytest.approx(global_norm(plain), rel=1e-6)
        for g, optimiser, average in zip((flat, plain), optimisers, averages, strict=True):
            optimiser.step(g, threads)
            average.update(threads)
    for name in plain:
        a, b = ((m.state_dict()[name], o.mean[name], o.square[name], e.average[name])
                for m, o, e in zip(models, optimisers, averages, strict=True))  # fmt: skip
        np.testing.assert_array_equal(a[0], b[0], err_msg=name)
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert clip_gradients(flat, 1.0) > 1 and global_norm(flat) == pytest.approx(1, rel=1e-4)
    assert isinstance(flat, Flat)


def test_copies_are_moved_too():
    """A copy's weights are arrays of their own, however its original's were arranged."""
    model = small()
    AdamW(model, 0.1)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = other.norm.weight.numpy().copy()
        optimiser = AdamW(other, 0.1)
        gradients = zeros_like(other.state_dict())
        gradients.whole[...] = 1
        optimiser.step(gradients)
        assert (other.norm.weight.numpy() < before).all() and (model.norm.weight.numpy() == before).all()


def test_parts_of_one_array_stay_parts():
    flat = zeros_like(small().state_dict())
    flat["norm.weight"] += 1
    assert flat.whole.sum() == flat["norm.weight"].size
    with pytest.raises(TypeError, match=r"norm.weight is part of one array; write into it"):
        flat["norm.weight"] = np.ones(8)


def test_arrays_in_another_order_are_not_alike():
    state = small().state_dict()
    flat, other = zeros_like(state), zeros_like(dict(reversed(state.items())))
    assert flat.wholes(other) is None and flat.wholes(zeros_like(state)) is not None


def test_the_norm_does_not_depend_on_the_threads_of_blas():
    gradients = {"w": np.random.default_rng(0).standard_normal(3 * CHUNK + 7).astype(np.float32)}
    norms = []
    for count in (1, 2):
        with blas_threads(count):
            norms.append(global_norm(gradients))
    assert norms[0] == norms[1]
