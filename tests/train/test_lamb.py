"""LAMB: against the reference's trajectories and its own formula, for any chunks, threads and devices."""

import json
import math
from importlib import import_module

import numpy as np
import pytest

from autograd.backend import to_device
from autograd.random import Stream
from minicait import nn
from minicait.optim import AdamW, Lamb, clip_gradients, global_norm
from minicait.optim.lamb import trust_ratio
from tests import stand_in_cupy
from tests.golden.recipe import FOLDER
from tests.train.helpers import small
from tests.train.test_optim import Line, drawn

GOLDEN = dict(np.load(FOLDER / "family/lamb.npz"))
SCENARIOS = {
    name: values
    for name, values in json.loads(str(GOLDEN["config"]))["scenarios"].items()
    if not {"always_adapt", "trust_clip"} & values.keys()  # which the reference offers and DeiT III does not use
}
KINDS = ("param", "exp_avg", "exp_avg_sq", "ratio")
NAMES = sorted(key.removeprefix("start:") for key in GOLDEN if key.startswith("start:"))


class Part(nn.Module):
    def __init__(self, arrays):
        for name, value in arrays.items():
            setattr(self, name, nn.Parameter(value.copy()))


class Tensors(nn.Module):
    """The tensors of the golden file: decayed.a, decayed.b, decayed.zero, plain.bias, plain.gamma, plain.pos_embed."""

    no_decay = frozenset({"pos_embed"})

    def __init__(self, dtype):
        parts = {"decayed": {}, "plain": {}}
        for name in NAMES:
            part, own = name.split(".")
            parts[part][own] = GOLDEN[f"start:{name}"].astype(dtype)
        self.decayed, self.plain = map(Part, parts.values())


def lamb(model, scenario, **options):
    how = SCENARIOS[scenario]
    return Lamb(model, 1.0, how["weight_decay"], eps=how["eps"], max_norm=how["max_grad_norm"], **options)


def gradients_of(step, dtype):
    return {name: GOLDEN[f"grad:{name}"][step].astype(dtype) for name in NAMES}


# ---- the reference


@pytest.mark.parametrize("known", [False, True], ids=["", "norm known"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_trajectory_of_the_reference(scenario, dtype, tolerance, known):
    """Parameters, moments and ratios after each of five steps; two of the gradients are not clipped."""
    model = Tensors(dtype)
    optimiser, how, errors = lamb(model, scenario), SCENARIOS[scenario], dict.fromkeys(KINDS, 0.0)
    for step, (lr, norm) in enumerate(zip(GOLDEN["lr"], GOLDEN["grad_norm"], strict=True)):
        before, gradients = optimiser.parameters.weights.copy(), gradients_of(step, dtype)
        assert global_norm(gradients) == pytest.approx(norm, rel=tolerance)
        optimiser.step(gradients, lr, norm if known else None)
        for name, p in model.named_parameters():
            m, v, decay = optimiser.mean[name], optimiser.square[name], how["weight_decay"]
            u = m / (1 - 0.9 ** (step + 1)) / (np.sqrt(v / (1 - 0.999 ** (step + 1))) + how["eps"])
            u = u + decay * before[name] if name.startswith("decayed") else u
            ratio = np.linalg.norm(p.numpy() - before[name]) / (lr * np.linalg.norm(u)) if u.any() else 1.0
            for kind, got in zip(KINDS, (p.numpy(), m, v, ratio), strict=True):
                want = GOLDEN.get(f"{scenario}:{kind}:{name}")  # the moments of one scenario only
                if want is not None:
                    error = np.abs(got - want[step]).max() / np.abs(want).max()
                    errors[kind] = max(errors[kind], error)
    print(f"\n{scenario} in {dtype}:", ", ".join(f"{kind} {error:.1e}" for kind, error in errors.items()))
    assert errors.pop("ratio") < 10 * tolerance  # made from a difference of weights here, which has fewer digits
    assert max(errors.values()) < tolerance


def test_the_formula_is_the_reference():
    """`update`, tensor by tensor."""
    arrays = {name: (GOLDEN[f"start:{name}"], 0.0, 0.0) for name in NAMES}
    optimiser = lamb(Tensors("float64"), "reference")
    for step, (lr, norm) in enumerate(zip(GOLDEN["lr"], GOLDEN["grad_norm"], strict=True)):
        optimiser.lr = lr
        for name, (p, m, v) in arrays.items():
            decay = optimiser.weight_decay if name.startswith("decayed") else 0.0
            arrays[name] = optimiser.update(p, GOLDEN[f"grad:{name}"][step], m, v, step + 1, decay, norm)
            wanted = [GOLDEN[f"reference:{kind}:{name}"][step] for kind in ("param", "exp_avg", "exp_avg_sq")]
            for got, want in zip(arrays[name], wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)


# ---- the fused step


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("max_norm", [None, 1.0, 1e9])
@pytest.mark.parametrize("chunk", [37, None])
def test_the_fused_step_is_the_one_that_is_written_out(dtype, tolerance, weight_decay, max_norm, chunk, monkeypatch):
    if chunk is not None:
        monkeypatch.setattr(import_module("autograd.kernels.lamb"), "_CHUNK", chunk)
    model = small().astype(dtype)
    optimiser = Lamb(model, 0.03, weight_decay, betas=(0.8, 0.95), eps=1e-4, max_norm=max_norm)
    flat = optimiser.parameters
    want = {name: (p.numpy().copy(), 0 * p.numpy(), 0 * p.numpy()) for name, p in model.named_parameters()}
    slices, decayed = flat.layout.slices, flat.layout.decayed
    for t in range(1, 5):
        gradients = drawn(flat, seed=t)
        norm, kept = global_norm(gradients), gradients.array.copy()
        for name, (p, m, v) in want.items():
            decay = weight_decay if slices[name].start < decayed else 0.0
            want[name] = optimiser.update(p, gradients[name], m, v, t, decay, norm)
        optimiser.step(gradients)
        np.testing.assert_array_equal(gradients.array, kept)  # the caller's own
    for name, arrays in want.items():
        for got, own in zip((flat.weights, optimiser.mean, optimiser.square), arrays, strict=True):
            assert got[name].dtype == dtype
            np.testing.assert_allclose(got[name], own, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_on_threads_and_by_name(threads, monkeypatch):
    monkeypatch.setattr(import_module("autograd.kernels.lamb"), "_CHUNK", 50)
    models = [small(), small()]
    optimisers = [Lamb(model, 0.1, threads=count) for model, count in zip(models, (threads, 1), strict=True)]
    for seed in range(3):
        flat = drawn(optimisers[0].parameters, seed)
        norm, plain = global_norm(flat), {name: g.copy() for name, g in flat.items()}
        optimisers[0].step(flat, norm=norm)
        optimisers[1].step(plain, norm=norm)
    for part in ("mean", "square"):
        np.testing.assert_array_equal(*(getattr(optimiser, part).array for optimiser in optimisers))
    np.testing.assert_array_equal(*(optimiser.parameters.array for optimiser in optimisers))


def test_scattered_gradients(monkeypatch):
    monkeypatch.setattr(import_module("autograd.kernels.lamb"), "_CHUNK", 100)
    gradient = np.random.default_rng(0).standard_normal((300, 2)).astype(np.float32)
    moved = []
    for g in (gradient, np.asfortranarray(gradient), gradient.astype(np.float64)):
        model = Line(np.ones((300, 2)))
        Lamb(model, 0.1).step({"w": g})
        moved.append(model.w.data.copy())
    np.testing.assert_array_equal(moved[0], moved[1])
    np.testing.assert_allclose(moved[0], moved[2], rtol=1e-6)


def test_a_step_is_in_proportion_to_the_weights():
    """A tensor with decay moves by lr |p|, along AdamW's step; others as by Adam."""
    for size in (1e-3, 1.0, 1e3):
        model = Line(size * np.array([[3.0, 4.0]]))
        before = model.w.numpy().copy()
        Lamb(model, lr=0.1, weight_decay=1e-9).step({"w": np.float32([[0.5, -0.5]])})
        np.testing.assert_allclose(before - model.w.numpy(), 0.5 * size * np.sqrt([[0.5, 0.5]]) * [[1, -1]], rtol=1e-5)
    for model, decay in ((Line([3.0, 4.0]), 0.1), (Line([[3.0, 4.0]]), 0.0)):
        Lamb(model, lr=0.1, weight_decay=decay).step({"w": np.float32([0.5, -0.5]).reshape(model.w.shape)})
        np.testing.assert_allclose(model.w.numpy().reshape(-1), [2.9, 4.1], rtol=1e-5)


def test_the_ratio():
    p, u = np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]])
    assert trust_ratio(p, u, 0.1) == 2.5 and trust_ratio(p, u, 0.0) == 1
    assert trust_ratio(0 * p, u, 0.1) == trust_ratio(p, 0 * u, 0.1) == 1


def test_without_arguments_and_with_some_gradients_only():
    model = small()
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    optimiser = Lamb(model, 0.1)
    optimiser.step()  # there is no .grad
    optimiser.step({"head.weight": np.ones((10, 12), np.float32), "norm.bias": np.ones(12, np.float32)})
    moved = {name for name, p in model.named_parameters() if (p.numpy() != before[name]).any()}
    assert moved == {"head.weight", "norm.bias"} and optimiser.steps == 2
    with pytest.raises(KeyError, match="nose"):
        optimiser.step({"nose": np.ones(3, np.float32)})
    line = Line([[3.0]])
    optimiser = Lamb(line, lr=0.1)
    (line.w * line.w).backward()
    optimiser.step(lr=0.2)
    assert line.w.item() == pytest.approx(3 - 0.2 * 3) and optimiser.lr == 0.2
    optimiser.zero_grad()
    assert line.w.grad is None


# ---- clipping


def test_clipping_is_exact_and_its_own():
    """A gradient beyond max_norm is as good as one of that norm; a shorter one stays as it is."""

    def moved(g, **options):
        model = Line([[1.0, 2.0]], "float64")
        optimiser = Lamb(model, 0.1, **options)
        optimiser.step({"w": np.array([[0.3, 0.1]])})  # so that the length of the second matters
        optimiser.step({"w": np.array(g)})
        return model.w.numpy()

    np.testing.assert_allclose(moved([[6.0, -8.0]]), moved([[0.6, -0.8]]), rtol=1e-15)
    np.testing.assert_allclose(moved([[6.0, -8.0]], max_norm=5.0), moved([[3.0, -4.0]], max_norm=5.0), rtol=1e-15)
    assert (moved([[0.3, 0.4]]) == moved([[0.3, 0.4]], max_norm=None)).all()
    assert (moved([[6.0, -8.0]]) != moved([[6.0, -8.0]], max_norm=None)).all()
    optimiser = Lamb(Line([1.0]), 0.1)
    assert (optimiser.clipping(0.0), optimiser.clipping(1.0), optimiser.clipping(2.5)) == (1, 1, 2.5)


@pytest.mark.parametrize("max_norm", [0, -1.0, math.nan])
def test_a_norm_to_clip_to_is_positive(max_norm):
    with pytest.raises(ValueError, match="max_norm must be positive, or None to clip nothing"):
        Lamb(nn.Linear(2, 2), 0.1, max_norm=max_norm)


@pytest.mark.parametrize("flat", [True, False], ids=["one array", "by name"])
def test_gradients_that_float32_cannot_square(flat):
    """They move the weights as the same gradients do at a size that float32 can square."""
    results = []
    for size in (1e25, 1.0):
        model = small()
        optimiser = Lamb(model, 1e-2, max_norm=math.sqrt(drawn(AdamW(model, 0.1).parameters, 0).array.size) / 10)
        gradients = drawn(optimiser.parameters, 0, size)
        optimiser.step(gradients if flat else dict(gradients))
        results.append(optimiser.parameters.array.copy())
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-6)


# ---- elsewhere


def test_on_another_device(monkeypatch):
    """CuPy's arrays, by the NumPy body."""
    results = []
    with stand_in_cupy.installed(monkeypatch):
        for device in ("cpu", "cuda"):
            model = small().to(device)
            optimiser = Lamb(model, 1e-2)
            for seed in range(3):
                here, gradients = drawn(AdamW(small(), 1e-2).parameters, seed), optimiser.parameters.zeros()
                gradients.array[...] = to_device(here.array, device)
                optimiser.step(gradients)
            results.append(to_device(optimiser.parameters.array, "cpu"))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-7)


def test_it_learns():
    """A line, which needs weights of another length than they have at first."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 3)).astype(np.float32)
    y = (x @ np.float32([1, -2, 3]))[:, None]
    layer = nn.Linear(3, 1, stream=Stream(0, "line"))  # without one, the weights depend on tests before this one
    optimiser = Lamb(layer, lr=0.1, weight_decay=1e-4)
    for step in range(200):
        optimiser.zero_grad()
        error = layer(x) - y
        (error * error).mean().backward()
        optimiser.step(lr=0.1 * (1 - step / 200))
    np.testing.assert_allclose(layer.weight.numpy(), [[1, -2, 3]], atol=1e-2)


def test_adamw_with_clipping_takes_other_steps():
    """The two are not the same by accident."""
    models = [small(), small()]
    by_adamw, by_lamb = AdamW(models[0], 1e-2), Lamb(models[1], 1e-2)
    gradients = drawn(by_adamw.parameters, 0)
    by_lamb.step(gradients)
    clip_gradients(gradients, 1.0)
    by_adamw.step(gradients)
    layout = by_adamw.parameters.layout
    apart = np.abs(by_adamw.parameters.array - by_lamb.parameters.array)
    assert (apart[: layout.decayed] > 1e-3).mean() > 0.9 and apart[layout.decayed :].max() < 1e-6
