"""Conv2d and BatchNorm as layers: names, initialisation, running statistics, and those of PyTorch."""

import numpy as np
import pytest

import autograd as ag
from autograd import ops
from autograd.random import Stream
from minicait import nn
from minicait.nn.layers import shapes_only
from tests.golden.recipe import FOLDER

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_conv2d():
    layer = nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2, stream=Stream(0, "conv"))
    assert {name: p.shape for name, p in layer.named_parameters()} == {"weight": (4, 3, 3, 3), "bias": (4,)}
    x = draw(2, 7, 8, 6)
    want = ops.conv2d(x, layer.weight, layer.bias, 2, 1, 2, channels_last=True)
    np.testing.assert_array_equal(layer(x).numpy(), want.numpy())
    assert layer(x).shape == (2, 4, 4, 4)
    assert str(layer).startswith("Conv2d(6 -> 4, 3 x 3, stride 2, padding 1, groups 2)  112")
    plain = nn.Conv2d(6, 4, 1, bias=False)
    assert [name for name, _ in plain.named_parameters()] == ["weight"]
    assert str(plain).startswith("Conv2d(6 -> 4, 1 x 1, no bias)")


def test_conv2d_starts_uniform():
    """In ±1/sqrt(inputs that an output sees), weight and bias, from the layer's stream."""
    layer = nn.Conv2d(64, 256, 3, groups=2, stream=Stream(0, "conv"))
    bound = (32 * 9) ** -0.5
    for p in layer.parameters():
        assert p.dtype == np.float32
        assert 0.97 * bound < np.abs(p.numpy()).max() <= bound and abs(p.numpy().mean()) < 0.1 * bound
    again, other = (nn.Conv2d(64, 256, 3, groups=2, stream=Stream(seed, "conv")) for seed in (0, 1))
    np.testing.assert_array_equal(again.weight.numpy(), layer.weight.numpy())
    assert (other.weight.numpy() != layer.weight.numpy()).all()
    with shapes_only():
        assert not nn.Conv2d(64, 256, 3).weight.numpy().any()


def test_a_patch_embedding_is_a_convolution():
    embed = nn.PatchEmbed(4, 8, stream=Stream(0, "embed"))
    images = draw(2, 3, 8, 12)
    want = ops.conv2d(images, embed.proj.weight, embed.proj.bias, stride=4).reshape(2, 8, 6).transpose(0, 2, 1)
    np.testing.assert_allclose(embed(images).numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bn2d", "bn1d"])
def test_batch_norm_equals_golden_values(name):
    with np.load(FOLDER / "operations.npz") as golden:
        case = {key.split(":")[1]: golden[key] for key in golden.files if key.startswith(f"{name}:")}
    layer = nn.BatchNorm(case["weight"].size).astype(np.float64)
    names = "weight", "bias", "running_mean", "running_var"
    layer.load_state_dict({key: case[key] for key in names} | {"num_batches_tracked": np.int64(4)})
    x = np.moveaxis(case["x"], 1, -1)
    for mode in ("eval", "train"):
        y = layer.train(mode == "train")(x)
        np.testing.assert_allclose(np.moveaxis(y.numpy(), -1, 1), case[f"y_{mode}"], rtol=0, atol=1e-12)
        if mode == "eval":
            assert (layer.running_var.numpy() == case["running_var"]).all() and layer.num_batches_tracked.item() == 4
    for key in ("running_mean", "running_var"):
        np.testing.assert_allclose(layer.state_dict()[key], case[f"{key}_after"], rtol=1e-12, atol=0)
    assert layer.num_batches_tracked.item() == 5


def test_batch_norm_of_a_batch():
    layer = nn.BatchNorm(3, eps=0, momentum=0.25)
    assert [name for name, _ in layer.named_buffers()] == ["running_mean", "running_var", "num_batches_tracked"]
    assert layer.couples_samples and str(layer).startswith("BatchNorm(3)  6")
    memory = [buffer.data for _, buffer in layer.named_buffers()]
    x = draw(4, 5, 2, 3) * [1, 2, 3] + [0, 10, -5]
    x = x.astype(np.float32)
    y = layer(x).numpy().reshape(-1, 3)
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(y.var(0), 1, rtol=1e-5)
    rows = x.reshape(-1, 3)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.25 * rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.75 + 0.25 * rows.var(0, ddof=1), rtol=1e-5)
    assert all(a is b.data for a, (_, b) in zip(memory, layer.named_buffers(), strict=True))  # updated in place
    assert layer.num_batches_tracked.shape == () and layer.num_batches_tracked.dtype == np.int64
    with pytest.raises(ValueError, match="batch statistics need at least two values for each channel"):
        layer(x[0, 0, :1])
    np.testing.assert_allclose(layer.eval()(x[0, 0, :1]).shape, (1, 3))


def test_a_checkpoint_updates_running_statistics_once():
    plain, checkpointed = nn.BatchNorm(3), nn.BatchNorm(3)
    x = draw(6, 3)
    results = []
    for layer, call in ((plain, plain), (checkpointed, lambda t: ag.checkpoint(checkpointed, t))):
        y = call(ag.Tensor(x, requires_grad=True))
        (y * y * y).sum().backward()
        results.append(layer.weight.grad.numpy())
    np.testing.assert_array_equal(*results)
    for (name, a), (_, b) in zip(plain.named_buffers(), checkpointed.named_buffers(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=name)
