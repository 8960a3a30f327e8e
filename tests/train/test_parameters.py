"""All parameters as one array: built once, shared by whatever needs it, and kept together."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

from minicait import nn
from minicait.optim import EMA, AdamW, flat_parameters
from minicait.optim.parameters import Layout, is_decayed
from minicait.train.gradients import value_and_grad
from tests import stand_in_cupy
from tests.train.helpers import SMALL, small


def test_each_parameter_is_a_view_into_one_array():
    model = small()
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    flat = flat_parameters(model)
    assert list(flat.weights) == list(before) and flat.array.size == model.parameter_count()
    for name, p in model.named_parameters():
        assert np.shares_memory(p.data, flat.array)
        np.testing.assert_array_equal(p.data, before[name])
    flat.array[...] = 7
    assert all((p.numpy() == 7).all() for p in model.parameters())


def test_it_is_built_once_and_shared():
    model = small()
    flat, optimiser, ema = flat_parameters(model), AdamW(model, 0.1), EMA(model)
    assert flat_parameters(model) is optimiser.parameters is ema.parameters is flat
    assert optimiser.mean.layout == optimiser.square.layout == ema.average.layout == flat.layout
    assert not np.shares_memory(ema.average.array, flat.array)


def test_it_does_not_keep_the_model_alive():
    model = small()
    there = weakref.ref(model)
    flat_parameters(model)
    del model
    gc.collect()
    assert there() is None


def test_decayed_parameters_come_first():
    model = small()
    flat = flat_parameters(model)
    flat.array[: flat.layout.decayed] = 7
    decayed = {name for name, p in model.named_parameters() if (p.numpy() == 7).all()}
    kept = {name for name, _ in model.named_parameters()} - decayed
    assert {"cls_token", "pos_embed", "norm.weight"} <= kept
    assert all(name.endswith(("bias", "gamma_1", "gamma_2", "_token", "pos_embed")) or "norm" in name for name in kept)
    assert {"blocks.0.attn.proj_l.weight", "patch_embed.proj.weight"} <= decayed
    assert all(name.endswith("weight") and "norm" not in name for name in decayed)


def test_the_rule_of_weight_decay():
    assert is_decayed("a.weight", (3, 3)) and not is_decayed("a.bias", (3,)) and not is_decayed("scale", ())
    assert not is_decayed("encoder.pos_embed", (1, 3, 3), frozenset({"pos_embed"}))
    assert is_decayed("pos_embed.weight", (3, 3), frozenset({"pos_embed"}))  # the last part of the name counts


def test_arrays_that_were_replaced_are_attached_again():
    model = small()
    flat, optimiser, ema = flat_parameters(model), AdamW(model, 0.1, weight_decay=0), EMA(model, 0.0)
    gradients = flat.zeros()
    model.norm.weight.data = model.norm.weight.data * 2
    optimiser.step(gradients)  # a step along nothing
    assert (model.norm.weight.numpy() == 2).all() and np.shares_memory(model.norm.weight.data, flat.array)
    model.norm.weight.data = model.norm.weight.data * 2
    ema.update()
    assert (ema.average["norm.weight"] > 2).all() and np.shares_memory(model.norm.weight.data, flat.array)
    model.norm.weight.data = model.norm.weight.data * 2
    assert flat_parameters(model) is flat and (flat.weights["norm.weight"] == 8).all()


def test_another_dtype_or_device_needs_a_new_optimiser():
    model = small()
    optimiser, ema = AdamW(model, 0.1), EMA(model)
    model.astype("float64")
    for part in (lambda: optimiser.step(optimiser.parameters.zeros()), ema.update):
        with pytest.raises(ValueError, match="cls_token changed to float64 on cpu; create a new optimiser"):
            part()
    assert AdamW(model, 0.1).parameters.array.dtype == np.float64
    model.norm.weight.data = model.norm.weight.data.astype(np.float32)
    with pytest.raises(ValueError, match="one dtype on one device, got float32 on cpu, float64 on cpu"):
        flat_parameters(model)


def test_a_model_that_moved_needs_a_new_optimiser(monkeypatch):
    model = small()
    optimiser = AdamW(model, 0.1)
    with stand_in_cupy.installed(monkeypatch):
        model.to("cuda")
        with pytest.raises(ValueError, match="cls_token changed to float32 on cuda:0; create a new optimiser"):
            optimiser.step({})
        assert AdamW(model, 0.1).parameters.device == "cuda:0"
        model.norm.weight.data = np.ones(12, np.float32)
        with pytest.raises(ValueError, match="one dtype on one device, got float32 on cpu, float32 on cuda:0"):
            flat_parameters(model)


def test_a_module_without_parameters():
    with pytest.raises(ValueError, match="got no parameters"):
        AdamW(nn.Module(), 0.1)


def test_copies_are_moved_by_themselves():
    model = small()
    AdamW(model, 0.1)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = other.norm.weight.numpy().copy()
        optimiser = AdamW(other, 0.1)
        gradients = optimiser.parameters.zeros()
        gradients.array[...] = 1
        optimiser.step(gradients)
        assert (other.norm.weight.numpy() < before).all() and (model.norm.weight.numpy() == before).all()


def test_a_model_of_another_shape_of_tree_gets_another_array():
    model = small()
    flat = flat_parameters(model)
    model.head = nn.Linear(SMALL["dim"], 3)
    assert flat_parameters(model) is not flat and flat_parameters(model).weights["head.bias"].shape == (3,)


class Tied(nn.Module):
    """One layer used twice, under two names, and one weight of its own."""

    def __init__(self):
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.weight = nn.Parameter(np.ones((3, 3), np.float32))

    def forward(self, x):
        return self.second(self.first(x)) @ self.weight


def test_tied_parameters_are_there_once():
    model = Tied()
    flat = flat_parameters(model)
    assert list(flat.weights) == ["weight", "first.weight", "first.bias"] == list(model.state_dict())
    assert flat.array.size == model.parameter_count() == 9 + 9 + 3
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    _, gradients = value_and_grad(model, lambda y, t: (y * t).mean(), x, x, micro_batch=2)
    (model(x) * x).mean().backward()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(gradients[name], p.grad.numpy(), rtol=1e-5)
    before = model.first.weight.numpy().copy()
    AdamW(model, 0.1, weight_decay=0).step(gradients)
    np.testing.assert_allclose(
        model.second.weight.numpy(), before - 0.1 * np.sign(gradients["first.weight"]), rtol=1e-3
    )


def test_views_stay_views():
    flat = flat_parameters(small()).zeros()
    flat["norm.weight"] += 1
    assert flat.array.sum() == flat["norm.weight"].size
    with pytest.raises(TypeError, match=r"norm.weight is a view into a flat array; write into it"):
        flat["norm.weight"] = np.ones(12)
    other = flat.copy()
    other.array += 1
    assert flat.array.sum() == flat["norm.weight"].size and other["norm.weight"].min() == 2


def test_arrays_in_another_order_have_another_layout():
    shapes = {name: p.shape for name, p in small().named_parameters()}
    assert Layout.of(shapes) == Layout.of(dict(shapes))
    assert Layout.of(shapes) != Layout.of(dict(reversed(shapes.items())))


def test_another_place_in_memory():
    """Weights move, for example into memory that processes share, and everybody sees the same ones."""
    model = small()
    optimiser, before = AdamW(model, 0.1), model.norm.weight.numpy().copy()
    place = []
    optimiser.parameters.move(lambda size: place.append(np.full(size, np.nan, np.float32)) or place[0])
    assert optimiser.parameters.array is place[0]
    assert all(np.shares_memory(p.data, place[0]) for p in model.parameters())
    np.testing.assert_array_equal(model.norm.weight.numpy(), before)
    optimiser.step({"norm.weight": np.ones(12, np.float32)})
    assert (model.norm.weight.numpy() < before).all()
