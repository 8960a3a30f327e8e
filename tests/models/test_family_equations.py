"""Equations of the thesis and of the paper on token labeling, written out in NumPy beside the layers."""

from math import erf

import numpy as np
import pytest

from autograd import Tensor, ops
from autograd.random import Stream
from minicait import nn, record
from minicait.models import Outputs
from minicait.models.deit import DeiT
from minicait.models.deit3 import DeiT3
from minicait.models.lvvit import Block as DividedBlock
from minicait.models.lvvit import LVViT
from minicait.models.patchconvnet import PatchConvNet, SqueezeExcite
from minicait.models.resmlp import Block, ClassBlock, ResMLP
from minicait.train.objectives import CrossEntropy, HardDistillation

RNG = np.random.default_rng(0)
SMALL = {"num_classes": 5, "img_size": 16, "patch_size": 4, "dim": 12, "depth": 2}
IMAGES = RNG.standard_normal((4, 3, 16, 16))


def randomised(module):
    """In float64, with all parameters random: none of them is 0 or 1."""
    module.astype(np.float64)
    for parameter in module.parameters():
        parameter.data = RNG.normal(0, 0.5, parameter.shape)
    return module


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def affine(layer, x):
    return layer.alpha.data * x + layer.beta.data


def feed_forward(mlp, x):
    inner = x @ mlp.fc1.weight.data.T + mlp.fc1.bias.data
    return inner * 0.5 * (1 + np.vectorize(erf)(inner / 2**0.5)) @ mlp.fc2.weight.data.T + mlp.fc2.bias.data


# ---- DeiT and DeiT III


def test_hard_distillation_through_the_token():
    """Eq. 3.3: the class head learns the label, the other head the teacher's decision."""
    logits, distilled, teacher = RNG.standard_normal((3, 4, 5))
    labels = np.array([0, 1, 2, 3])
    loss = HardDistillation(CrossEntropy())(
        Outputs(Tensor(logits), Tensor(distilled)), {"labels": labels, "teacher": teacher}
    )
    rows = np.arange(4)
    of_labels = -np.log(softmax(logits)[rows, labels]).mean()
    of_teacher = -np.log(softmax(distilled)[rows, teacher.argmax(1)]).mean()
    assert loss.item() == pytest.approx((of_labels + of_teacher) / 2)


@pytest.mark.parametrize("distilled", [False, True])
def test_tokens_of_deit_stand_before_the_patches_and_have_positions(distilled):
    model = randomised(DeiT(**SMALL, heads=3, distilled=distilled)).eval()
    with record(model) as inside:
        model(IMAGES)
    x = inside.residual["blocks.0.attn"].main
    tokens = [model.cls_token.data, model.dist_token.data] if distilled else [model.cls_token.data]
    want = [np.broadcast_to(token, (4, 1, 12)) for token in tokens] + [model.patch_embed(Tensor(IMAGES)).numpy()]
    np.testing.assert_allclose(x, np.concatenate(want, 1) + model.pos_embed.data, atol=1e-12)
    assert inside.attention["blocks.0.attn"].before.shape == (4, 3, len(tokens) + 16, len(tokens) + 16)


def test_deit_drops_more_in_later_blocks():
    rates = [block.drop_path_1.rate for block in DeiT(**SMALL | {"depth": 5}, heads=3, drop_path_rate=0.2).blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    rates = [block.drop_path_2.rate for block in DeiT3(**SMALL | {"depth": 5}, heads=3, drop_path_rate=0.2).blocks]
    assert rates == [0.2] * 5


def test_deit_is_deit3_with_scales_of_one():
    """The class token's position may be taken into the token, and LayerScale of 1 is none."""
    old, new = randomised(DeiT(**SMALL, heads=3)).eval(), DeiT3(**SMALL, heads=3).astype(np.float64).eval()
    weights = dict(old.state_dict())
    positions = weights["pos_embed"]
    weights |= {"pos_embed": positions[:, 1:], "cls_token": weights["cls_token"] + positions[:, :1]}
    weights |= {name: np.ones(12) for name in new.state_dict() if "gamma" in name}
    new.load_state_dict(weights)
    np.testing.assert_allclose(new(IMAGES).numpy(), old(IMAGES).numpy(), atol=1e-9)


# ---- ResMLP


def test_a_block_of_resmlp():
    """Eqs. 4.1 to 4.3, with tokens as rows, biases, and LayerScale at the end of a branch."""
    block = randomised(Block(9, 6, 24, 0.5, 0.0, Stream(0)))
    x = RNG.standard_normal((2, 9, 6))
    a, b = block.attn.weight.data, block.attn.bias.data
    z = x + block.gamma_1.data * (a @ affine(block.norm1, x) + b[:, None])
    y = z + block.gamma_2.data * feed_forward(block.mlp, affine(block.norm2, z))
    np.testing.assert_allclose(block(Tensor(x)).numpy(), y, atol=1e-12)


def test_aff_can_be_absorbed_by_the_next_layer():
    model = randomised(ResMLP(**SMALL)).eval()
    before = model(IMAGES).numpy()
    for aff, linear in [(b.norm2, b.mlp.fc1) for b in model.blocks] + [(model.norm, model.head)]:
        linear.bias.data = linear.bias.data + linear.weight.data @ aff.beta.data
        linear.weight.data = linear.weight.data * aff.alpha.data
        aff.alpha.data, aff.beta.data = np.ones(12), np.zeros(12)
    np.testing.assert_allclose(model(IMAGES).numpy(), before, rtol=1e-9)


def test_class_mlp_gathers_by_one_row_of_weights():
    block = randomised(ClassBlock(9, 6, 24, 0.5, Stream(0)))
    cls, patches = RNG.standard_normal((2, 1, 6)), RNG.standard_normal((2, 9, 6))
    z = affine(block.norm1, np.concatenate([cls, patches], 1))
    cls_1 = cls + block.gamma_1.data * (block.attn.weight.data @ z + block.attn.bias.data)
    cls_2 = cls_1 + block.gamma_2.data * feed_forward(block.mlp, affine(block.norm2, cls_1))
    np.testing.assert_allclose(block(Tensor(cls), Tensor(patches)).numpy(), cls_2, atol=1e-12)


def test_the_head_of_resmlp_sees_the_mean_or_the_class_token():
    model = randomised(ResMLP(**SMALL)).eval()
    with record(model) as inside:
        features = model.features(IMAGES).numpy()
    last = inside.residual["blocks.1.mlp"]
    np.testing.assert_allclose(features, affine(model.norm, last.main + last.branch).mean(1), atol=1e-9)
    model = randomised(ResMLP(**SMALL, class_mlp=True)).eval()
    with record(model) as inside:
        features = model.features(IMAGES).numpy()
    last = inside.residual["blocks_token_only.1.mlp"]
    np.testing.assert_allclose(features, affine(model.norm, last.main + last.branch)[:, 0], atol=1e-9)


# ---- PatchConvNet


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_a_sum_of_shifted_products(stride, depthwise):
    layer = randomised(nn.Conv2d(6, 6, 3, stride, 1, groups=6 if depthwise else 1))
    x = RNG.standard_normal((2, 9, 8, 6))
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    y = np.zeros((2, -(-9 // stride), 8 // stride, 6)) + layer.bias.data
    for row in range(y.shape[1]):
        for column in range(y.shape[2]):
            part = padded[:, stride * row : stride * row + 3, stride * column : stride * column + 3]
            subscripts = "bijc,cij->bc" if depthwise else "bijc,dcij->bd"
            weight = layer.weight.data[:, 0] if depthwise else layer.weight.data
            y[:, row, column] += np.einsum(subscripts, part, weight)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), y, atol=1e-12)


def test_squeeze_excite():
    layer = randomised(SqueezeExcite(6, 2, Stream(0)))
    x = RNG.standard_normal((2, 3, 4, 6))
    reduce, expand = layer.conv_reduce, layer.conv_expand
    s = np.maximum(x.mean((1, 2)) @ reduce.weight.data[:, :, 0, 0].T + reduce.bias.data, 0)
    gate = 1 / (1 + np.exp(-(s @ expand.weight.data[:, :, 0, 0].T + expand.bias.data)))
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), x * gate[:, None, None], atol=1e-12)


@pytest.mark.parametrize("multi_class", [False, True])
def test_maps_of_patchconvnet(multi_class):
    """A single class token is among its own keys; tokens of all classes attend to patches alone, each for itself."""
    model = randomised(PatchConvNet(**SMALL, multi_class=multi_class)).eval()
    with record(model) as inside:
        logits = model(IMAGES).numpy()
    (maps,) = inside.class_attention.values()
    assert maps.shape == ((4, 1, 5, 16) if multi_class else (4, 1, 1, 17))
    np.testing.assert_allclose(maps.sum(-1), 1)
    if multi_class:
        model.cls_token.data[:, 2] *= -1
        changed = np.abs(model(IMAGES).numpy() - logits).max(0)
        assert changed[2] > 1e-3 and not changed[[0, 1, 3, 4]].any()


# ---- LV-ViT


def test_batch_norm():
    layer = randomised(nn.BatchNorm(3))
    layer.running_mean.data[...], layer.running_var.data[...] = 0.5, 2.0
    x = RNG.normal(3, 2, (4, 5, 6, 3))
    mean, var, n = x.mean((0, 1, 2)), x.var((0, 1, 2)), 4 * 5 * 6
    want = (x - mean) / np.sqrt(var + 1e-5) * layer.weight.data + layer.bias.data
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), want, atol=1e-9)
    np.testing.assert_allclose(layer.running_mean.data, 0.9 * 0.5 + 0.1 * mean)
    np.testing.assert_allclose(layer.running_var.data, 0.9 * 2 + 0.1 * var * n / (n - 1))
    statistics = layer.running_mean.data.copy(), layer.running_var.data.copy()
    want = (x - statistics[0]) / np.sqrt(statistics[1] + 1e-5) * layer.weight.data + layer.bias.data
    np.testing.assert_allclose(layer.eval()(Tensor(x)).numpy(), want, atol=1e-9)
    np.testing.assert_array_equal(layer.running_mean.data, statistics[0])


def test_branches_divided_by_a_constant():
    """Eq. 5, with alpha = 1 / lambda."""
    block = randomised(DividedBlock(12, 3, 24, 4.0, 0.0, Stream(0)))
    x = Tensor(RNG.standard_normal((2, 7, 12)))
    half = x + block.attn(block.norm1(x)) / 4
    want = half + block.mlp(block.norm2(half)) / 4
    np.testing.assert_allclose(block(x).numpy(), want.numpy(), atol=1e-12)


def test_only_the_stem_of_lvvit_needs_the_whole_batch():
    model = LVViT(**SMALL, heads=3, stem_channels=4).astype(np.float64).train()
    whole, stem = model.outputs(IMAGES), model.stem(IMAGES)
    pieces = [model.trunk(stem[part]) for part in (slice(0, 1), slice(1, 4))]
    np.testing.assert_allclose(whole.logits.numpy(), np.concatenate([p.logits.numpy() for p in pieces]), atol=1e-12)
    np.testing.assert_allclose(whole.tokens.numpy(), np.concatenate([p.tokens.numpy() for p in pieces]), atol=1e-12)
    coupled = {name.partition(".")[0] for name, module in model.named_modules() if module.couples_samples}
    assert coupled == set(model.stem_modules)


@pytest.mark.parametrize("soft", [False, True])
def test_a_loss_for_every_token(soft):
    """Eqs. 6 and 7."""
    logits, tokens = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 9, 5))
    labels, token_labels = RNG.integers(0, 5, 4), RNG.integers(0, 5, (4, 9))
    y, y_tokens = np.eye(5)[labels], np.eye(5)[token_labels]
    if soft:
        labels, token_labels = y, y_tokens = RNG.dirichlet(np.ones(5), 4), RNG.dirichlet(np.ones(5), (4, 9))
    aux = -(y_tokens * np.log(softmax(tokens))).sum(-1).mean(1)
    want = (-(y * np.log(softmax(logits))).sum(-1) + 0.5 * aux).mean()
    outputs = Outputs(Tensor(logits), tokens=Tensor(tokens))
    loss = CrossEntropy()(outputs, {"labels": labels, "token_labels": token_labels})
    assert loss.item() == pytest.approx(want)


def test_without_labels_of_its_own_a_token_has_the_label_of_its_image():
    logits, tokens, labels = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 9, 5)), np.array([0, 1, 2, 3])
    outputs = Outputs(Tensor(logits), tokens=Tensor(tokens))
    want = ops.cross_entropy(logits, labels) + 0.5 * ops.cross_entropy(tokens, np.repeat(labels[:, None], 9, 1))
    assert CrossEntropy()(outputs, {"labels": labels}).item() == pytest.approx(want.item())
