"""Modules and layers: names, state, modes, and the equalities that their docstrings claim."""

import math

import numpy as np
import pytest

import autograd as ag
from autograd import ops, random
from autograd.random import Stream
from minicait import nn

RNG = np.random.default_rng(0)


class Pair(nn.Module):
    def __init__(self):
        self.scale = nn.Parameter(np.ones(3, np.float32))
        self.parts = [nn.Linear(3, 3, stream=Stream(0, f"{i}")) for i in range(2)]
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return self.norm(x * self.scale)


def test_parameters_are_named_in_order():
    names = [name for name, _ in Pair().named_parameters()]
    assert names == [
        "scale",
        "parts.0.weight",
        "parts.0.bias",
        "parts.1.weight",
        "parts.1.bias",
        "norm.weight",
        "norm.bias",
    ]
    assert Pair().parameter_count() == 3 + 2 * 12 + 6
    assert [name for name, _ in Pair().named_modules()] == ["", "parts.0", "parts.1", "norm"]


def test_state_goes_out_and_in():
    a, b = Pair(), Pair()
    for p in a.parameters():
        p.data[...] = RNG.standard_normal(p.shape)
    b.load_state_dict(a.state_dict())
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())
    a.parts[0].weight.data[0] = 7
    assert b.parts[0].weight.numpy()[0, 0] != 7
    b.load_state_dict(dict(a.named_parameters()))  # Tensors will do, too
    np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("norm.bias"), "missing: norm.bias"),
        (lambda s: s.update(extra=np.ones(1)), "unexpected: extra"),
        (lambda s: s.update(scale=np.ones(4)), r"scale must have shape \(3,\), got \(4,\)"),
        (lambda s: s.update(scale=np.array(["a", "b", "c"])), "scale is not numbers but <U1"),
        (lambda s: s.update(scale=np.ones(3, complex)), "scale is not numbers but complex128"),
        (lambda s: s.clear(), "missing: scale, parts.0.weight, parts.0.bias, parts.1.weight and 3 more"),
    ],
)
def test_state_that_does_not_fit_changes_nothing(change, sentence):
    model = Pair()
    before = {name: value.copy() for name, value in model.state_dict().items()}
    state = {name: value + 1 for name, value in before.items()}
    change(state)
    with pytest.raises(ValueError, match=f"Pair: the weights do not fit: .*{sentence}"):
        model.load_state_dict(state)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_not_strict_takes_what_fits():
    model = Pair()
    model.load_state_dict({"scale": [5, 6, 7], "other": np.ones(1)}, strict=False)
    assert model.scale.numpy().tolist() == [5, 6, 7]


def test_repr_shows_the_tree_and_the_counts():
    text = repr(Pair())
    assert text.splitlines() == [
        "Pair()  33",
        "  scale: (3,)  3",
        "  parts.0 to parts.1, each: Linear(3 -> 3)  12",
        "  norm: LayerNorm(3)  6",
    ]


def test_train_and_eval_reach_every_part():
    model = Pair().eval()
    assert not any(module.training for _, module in model.named_modules())
    assert all(module.training for _, module in model.train().named_modules())


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_evaluation_mode_gives_every_module_its_own_mode_back(error):
    model = Pair()
    model.parts[1].eval()  # frozen by somebody, while the rest is trained
    modes = [module.training for _, module in model.named_modules()]
    assert modes == [True, True, False, True]

    def work():
        with nn.evaluation_mode(model):
            assert not any(module.training for _, module in model.named_modules())
            with nn.evaluation_mode(model.norm):
                model.norm.train()
            assert not model.norm.training  # as it was outside of its own block
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(error):
            work()
    assert [module.training for _, module in model.named_modules()] == modes


class Counter(nn.Module):
    """Subtracts a running mean, and counts its calls."""

    def __init__(self):
        self.weight = nn.Parameter(np.ones(3, np.float32))
        self.mean = nn.Buffer(np.zeros(3, np.float32))
        self.calls = nn.Buffer(np.zeros((), np.int64))

    def forward(self, x):
        self.mean.data[...] = x.data.mean(0)
        self.calls.data[...] += 1
        return (x - self.mean) * self.weight


def test_buffers_are_state_that_is_not_learned():
    model = Counter()
    x = ag.Tensor(RNG.standard_normal((4, 3)).astype(np.float32))
    model(x).sum().backward()
    assert model.mean.grad is None and not model.mean.requires_grad and model.weight.grad is not None
    assert [name for name, _ in model.named_parameters()] == ["weight"] and model.parameter_count() == 3
    assert [name for name, _ in model.named_buffers()] == ["mean", "calls"]
    assert [name for name, _ in model.named_tensors()] == ["weight", "mean", "calls"]
    state = model.state_dict()
    np.testing.assert_allclose(state["mean"], x.numpy().mean(0), rtol=1e-6)
    other = Counter()
    other.load_state_dict(state)
    assert other.calls.numpy() == 1 and np.array_equal(other.mean.numpy(), state["mean"])
    with pytest.raises(ValueError, match=r"Counter: the weights do not fit: missing: mean, calls"):
        other.load_state_dict({"weight": np.ones(3)})
    assert (model.astype(np.float64).mean.dtype, model.calls.dtype) == (np.float64, np.int64)  # it counts


def test_a_module_without_forward_says_so():
    class Empty(nn.Module): ...

    with pytest.raises(TypeError, match=r"Empty needs a method forward"):
        Empty()(1)


def test_patch_embedding_is_a_strided_convolution():
    embed = nn.PatchEmbed(4, 5, stream=Stream(1, "p"))
    images = RNG.standard_normal((2, 3, 8, 12))
    embed.astype(np.float64)
    weight, bias = embed.proj.weight.numpy(), embed.proj.bias.numpy()
    want = np.zeros((2, 5, 2, 3))
    for row in range(2):
        for column in range(3):
            window = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            want[:, :, row, column] = np.einsum("bcij,dcij->bd", window, weight) + bias
    np.testing.assert_allclose(embed(images).numpy(), want.reshape(2, 5, 6).transpose(0, 2, 1), rtol=1e-12)
    with pytest.raises(
        ValueError, match=r"\(B, 3, H, W\) with H and W divisible by the patch size 4, got \(2, 3, 8, 10\)"
    ):
        embed(images[..., :10])


def test_attention_layers_have_right_gradients():
    layers = [
        nn.MultiHeadAttention(6, 2, Stream(0, "a")),
        nn.MultiHeadAttention(6, 2, Stream(0, "a"), qkv_bias=False),
        nn.TalkingHeadsAttention(6, 2, Stream(0, "b")),
        nn.ClassAttention(6, 2, Stream(0, "c")),
        nn.Mlp(6, 8, Stream(0, "d")),
    ]
    for layer in layers:
        names = [name for name, _ in layer.named_parameters()]
        arrays = [RNG.standard_normal(p.shape) * 0.5 for p in layer.parameters()]

        def call(x, *parameters, layer=layer, names=names):
            for name, value in zip(names, parameters, strict=True):
                *path, last = name.split(".")
                owner = layer
                for part in path:
                    owner = getattr(owner, part)
                setattr(owner, last, value)
            return layer.forward(x)

        ag.check_grads(call, [RNG.standard_normal((2, 4, 6)), *arrays], directions=1)


def drawn(layer, seed=0):
    """A layer with weights that are not small, and each of its linear layers as a function of NumPy."""
    rng = np.random.default_rng(seed)
    for p in layer.parameters():
        p.data = rng.normal(0, 0.4, p.shape)
    parts = {name: part for name, part in vars(layer).items() if isinstance(part, nn.Linear)}
    return {name: lambda x, p=part: x @ p.weight.numpy().T + p.bias.numpy() for name, part in parts.items()}


def attend(q, k, v, heads):
    """One image: softmax(q k^T / sqrt(d/h)) v, head by head."""
    results = []
    for a, b, c in zip(*(np.split(x, heads, axis=1) for x in (q, k, v)), strict=True):
        scores = np.exp(a @ b.T / np.sqrt(a.shape[1]))
        results.append(scores / scores.sum(1, keepdims=True) @ c)
    return np.concatenate(results, axis=1)


def test_self_attention_by_hand():
    layer, z = nn.MultiHeadAttention(8, 2), np.random.default_rng(1).standard_normal((5, 8))
    linear = drawn(layer)
    want = linear["proj"](attend(*np.split(linear["qkv"](z), 3, axis=1), 2))
    np.testing.assert_allclose(layer(z[None]).numpy()[0], want, rtol=1e-12)


def test_class_attention_by_hand():
    """Equations 5 to 9."""
    layer, z = nn.ClassAttention(8, 2), np.random.default_rng(1).standard_normal((5, 8))
    linear = drawn(layer)
    want = linear["proj"](attend(linear["q"](z[:1]), linear["k"](z), linear["v"](z), 2))
    np.testing.assert_allclose(layer(ag.Tensor(z[None])).numpy()[0], want, rtol=1e-12)


def test_feed_forward_by_hand():
    layer, x = nn.Mlp(6, 24), np.random.default_rng(1).standard_normal((5, 6))
    linear = drawn(layer)
    inner = linear["fc1"](x)
    bent = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    np.testing.assert_allclose(layer(x).numpy(), linear["fc2"](bent), rtol=1e-10)


def test_class_attention_looks_from_the_class_token_only():
    layer = nn.ClassAttention(6, 2)
    z = RNG.standard_normal((2, 5, 6)).astype(np.float32)
    assert layer(z).shape == (2, 1, 6)
    swapped = z[:, [0, 4, 3, 2, 1]]
    np.testing.assert_allclose(
        layer(swapped).numpy(), layer(z).numpy(), rtol=1e-5, atol=1e-8
    )  # patches have no order here


def test_talking_heads_with_identity_mixing_is_plain_attention():
    talking, plain = nn.TalkingHeadsAttention(6, 3), nn.MultiHeadAttention(6, 3)
    plain.load_state_dict({k: v for k, v in talking.state_dict().items() if "proj_" not in k})
    for mix in (talking.proj_l, talking.proj_w):
        mix.weight.data[...] = np.eye(3)
    x = RNG.standard_normal((2, 4, 6)).astype(np.float32)
    np.testing.assert_allclose(talking(x).numpy(), plain(x).numpy(), atol=1e-6)


def test_layer_scale_is_a_diagonal_matrix():
    gamma = nn.LayerScale(3, 0.5)
    gamma.data[...] = [1, 2, 3]
    x = RNG.standard_normal((4, 3)).astype(np.float32)
    scaled = ops.linear_residual(0 * x, x, np.eye(3), np.zeros(3), gamma).numpy()
    np.testing.assert_allclose(scaled, x @ np.diag([1, 2, 3]), rtol=1e-6)
    assert isinstance(gamma, nn.Parameter) and nn.LayerScale(3, 0.5).numpy().tolist() == [0.5] * 3


def test_drop_path_in_training_and_not_in_evaluation():
    layer = nn.DropPath(0.5, "test")
    x = np.ones((100, 2, 2), np.float32)
    first, second = layer(x).numpy(), layer(x).numpy()
    assert set(np.unique(first)) == {0, 2} and not np.array_equal(first, second)  # new masks at every call
    with random.using(Stream(0, step=5)):
        a, b = layer(x).numpy(), layer(x).numpy()
    np.testing.assert_array_equal(a, b)  # and the same ones for the same step
    np.testing.assert_array_equal(layer.eval()(x).numpy(), x)
    dropout = nn.Dropout(0.5, "other")
    with random.using(Stream(0)):
        assert 0.3 < (dropout(x).numpy() == 0).mean() < 0.7


def test_weights_are_drawn_by_name_and_seed():
    draw = [
        nn.Linear(50, 40, stream=Stream(seed, name)).weight.numpy()
        for seed, name in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))
    ]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert not np.array_equal(draw[0], draw[2]) and not np.array_equal(draw[0], draw[3])
    assert abs(draw[0].std() - 0.02) < 0.002
    assert not np.array_equal(nn.Linear(4, 4).weight.numpy(), nn.Linear(4, 4).weight.numpy())  # unnamed: each its own


def test_moving_a_module(monkeypatch):
    from tests import stand_in_cupy

    with stand_in_cupy.installed(monkeypatch):
        model = Pair().to("cuda")
        assert {p.device for p in model.parameters()} == {"cuda:0"} == {model.device}
        counter = Counter().to("cuda")
        assert (counter.mean.device, counter.calls.device) == ("cuda:0", "cuda:0")
        x = RNG.standard_normal((2, 3)).astype(np.float32)
        y = model(ops.to_device(x, "cuda"))
        assert y.device == "cuda:0"
        state = model.state_dict()
        assert all(isinstance(value, np.ndarray) for value in state.values())
        model.load_state_dict({name: value + 1 for name, value in state.items()})
        assert {p.device for p in model.to("cpu").parameters()} == {"cpu"} == {model.device, nn.Module().device}
