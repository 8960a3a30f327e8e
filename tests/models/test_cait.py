"""CaiT and the table of models."""

import sys

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import Tensor, ops, random
from autograd.random import Stream
from minicait import nn
from minicait.models.cait import PRESETS, PUBLISHED, CaiT

product_module = sys.modules["autograd.kernels.product"]  # `autograd.kernels.product` is its function

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 5, "layer_scale": 0.5}
IMAGES = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)

PARAMETERS = {  # at the first and the second resolution, 1000 classes
    "xxs24": (11_956_264, 12_029_224), "xxs36": (17_299_720, 17_372_680), "xs24": (26_560_648, 26_670_088),
    "xs36": (38_557_432, 38_666_872), "s24": (46_916_200, 47_062_120), "s36": (68_220_712, 68_366_632),
    "s48": (89_525_224, 89_671_144), "m24": (185_850_088, 186_141_928), "m36": (270_929_512, 271_221_352),
    "m48": (356_008_936, 356_460_520),
}  # fmt: skip
SIZES = {  # dim, heads, depth, LayerScale's epsilon, drop rate
    "xxs24": (192, 4, 24, 1e-5, 0.1), "xxs36": (192, 4, 36, 1e-5, 0.1), "xs24": (288, 6, 24, 1e-5, 0.1),
    "xs36": (288, 6, 36, 1e-6, 0.2), "s24": (384, 8, 24, 1e-5, 0.1), "s36": (384, 8, 36, 1e-6, 0.2),
    "s48": (384, 8, 48, 1e-6, 0.3), "m24": (768, 16, 24, 1e-5, 0.2), "m36": (768, 16, 36, 1e-6, 0.3),
    "m48": (768, 16, 48, 1e-6, 0.4), "tiny": (96, 2, 6, 0.1, 0.0), "small": (192, 4, 12, 0.1, 0.05),
}  # fmt: skip
TABLE_3 = {  # the paper's GFLOPs at 224 and 384
    "xxs24": (2.5, 9.6), "xxs36": (3.7, 14.3), "xs24": (5.4, 19.3), "xs36": (8.1, 28.8), "s24": (9.4, 32.2),
    "s36": (13.9, 48.0), "s48": (18.6, 63.8), "m24": (36.0, 116.1), "m36": (53.7, 173.3),
}  # fmt: skip


@pytest.mark.parametrize("size", PARAMETERS)
def test_parameters_of_every_size(size):
    counts = tuple(PRESETS[name].cost().parameters for name in minicait.list_models(f"cait_{size}_*"))
    assert counts == PARAMETERS[size]


@pytest.mark.parametrize("size", TABLE_3)
def test_multiply_adds_are_those_of_table_3(size):
    for resolution, published in zip((224, 384), TABLE_3[size], strict=True):
        ours = PRESETS[f"cait_{size}_{resolution}"].cost().multiply_adds / 1e9
        assert abs(ours - published) < 0.05 + 0.01 * published


@pytest.mark.parametrize("name", ["cait_xxs24_224", "cait_tiny_32", "cait_tiny_64", "cait_small_32", "cait_small_64"])
def test_the_count_is_that_of_the_real_model(name):
    model = minicait.create_model(name)
    assert model.parameter_count() == model.cost().parameters
    if name == "cait_xxs24_224":
        assert len(model.state_dict()) == 476


@pytest.mark.parametrize("name", ["cait_tiny_32", "cait_xxs24_224"])
def test_the_products_of_a_forward_pass_are_those_that_the_cost_counts(name, monkeypatch):
    model, made, multiply = minicait.create_model(name), [], product_module._product_numpy

    def counted(a, b, *others):
        result = multiply(a, b, *others)
        made.append(result.size * a.shape[-1])
        return result

    monkeypatch.setattr(product_module, "_product_numpy", counted)
    with ag.no_grad():
        model.eval()(np.zeros((1, 3, *model.img_size), np.float32))
    assert sum(made) == model.cost().multiply_adds - model.cost().left_out


def test_the_table():
    assert len(PRESETS) == 24 and set(PRESETS) >= set(PUBLISHED)
    assert minicait.list_models("cait_tiny*") == ["cait_tiny_32", "cait_tiny_64"]
    assert all(p.dim % 48 == 0 and p.img_size[0] % p.patch_size == 0 for p in PRESETS.values())
    for name, p in PRESETS.items():
        size, resolution = name.split("_")[1:]
        assert (p.dim, p.heads, p.depth, p.layer_scale, p.drop_path_rate) == SIZES[size]
        assert p.img_size == (int(resolution),) * 2
        assert p.patch_size == (p.img_size[0] // 8 if size in ("tiny", "small") else 16)
    tiny = minicait.create_model("cait_tiny_32", num_classes=10)
    assert (tiny.config.patch_size, tiny.config.drop_path_rate, tiny.config.num_classes) == (4, 0, 10)


def test_unknown_names_get_near_matches():
    with pytest.raises(ValueError, match=r"unknown model 'cait_xxs42_224': did you mean cait_xxs24_224"):
        minicait.create_model("cait_xxs42_224")
    with pytest.raises(ValueError, match=r"unknown model 'resnet50': `minicait models` lists them"):
        minicait.create_model("resnet50")
    with pytest.raises(ValueError, match="did you mean cait_xxs24_224 or"):
        minicait.create_model("CAIT_XXS24_224")
    with pytest.raises(ValueError, match="unknown model None"):
        minicait.create_model(None)


def test_presets_can_be_changed():
    model = minicait.create_model("cait_tiny_32", img_size=(16, 24), patch_size=8, drop_path_rate=0.3)
    assert model.pos_embed.shape == (1, 6, 96) and model.blocks[0].drop_path_1.rate == 0.3


def test_initialisation():
    model = CaiT(**{**SMALL, "dim": 96, "heads": 24, "layer_scale": 1e-5})
    state = model.state_dict()
    bound = (3 * 4 * 4) ** -0.5
    for name, value in state.items():
        if "gamma" in name:
            assert (value == np.float32(1e-5)).all()
        elif name.startswith("patch_embed"):
            assert np.abs(value).max() <= bound and value.std() == pytest.approx(bound / 3**0.5, rel=0.2)
        elif name.endswith("bias"):
            assert not value.any()
        elif "norm" in name:
            assert (value == 1).all()
        else:  # linear layers, head mixing among them, the class token and the positions
            spread = value.size**-0.5
            assert value.std() == pytest.approx(0.02, rel=4 * spread) and abs(value.mean()) < 0.1 * spread
    again, other = (CaiT(**{**SMALL, "dim": 96, "heads": 24}, seed=seed).state_dict() for seed in (0, 1))
    np.testing.assert_array_equal(again["blocks.1.mlp.fc1.weight"], state["blocks.1.mlp.fc1.weight"])
    assert not np.array_equal(other["head.weight"], state["head.weight"])
    assert not np.array_equal(state["blocks.0.mlp.fc1.weight"], state["blocks.1.mlp.fc1.weight"])


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"img_size": 17}, "an image of 17 x 17 does not divide into patches of 4"),
        ({"img_size": (16, 18)}, "an image of 16 x 18 does not divide"),
        ({"heads": 5}, "dim 12 does not divide into 5 heads"),
        ({"drop_path_rate": 1.0}, r"drop_path_rate must be in \[0, 1\), got 1.0"),
        ({"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ({"heads": -3}, "heads must be at least 1, got -3"),
        ({"depth": -1}, "depth must be at least 0, got -1"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"layer_scale": None}, "layer_scale must be a number, got None"),
        ({"dim": 12.0}, "dim must be an integer, got 12.0"),
        ({"img_size": (16, 16, 16)}, r"img_size must be an integer or two, got \(16, 16, 16\)"),
    ],
)
def test_sizes_that_do_not_fit(config, sentence):
    with pytest.raises(ValueError, match=f"CaiT: {sentence}"):
        CaiT(**{**SMALL, **config})


@pytest.mark.parametrize("images", [IMAGES[..., :8], IMAGES[0]])
def test_images_that_do_not_fit(images):
    with pytest.raises(ValueError, match=r"takes images of shape \(B, 3, 16, 16\), got .*resize them"):
        CaiT(**SMALL)(images)


@pytest.mark.parametrize("images", [(IMAGES * 10).astype(np.uint8), ag.Tensor(IMAGES.astype(np.float64))])
def test_images_of_another_dtype(images):
    with pytest.raises(ValueError, match="images must be normalised, in float32 like the weights, got"):
        CaiT(**SMALL)(images)


def test_an_empty_batch_is_a_batch():
    assert CaiT(**SMALL)(IMAGES[:0]).shape == (0, 5)


def test_images_may_be_float64_and_lists_of_arrays_follow_the_model():
    model = CaiT(**SMALL)
    want = model(IMAGES).numpy()
    assert want.shape == (4, 5) and want.dtype == np.float32
    np.testing.assert_array_equal(model(IMAGES.astype(np.float64)).numpy(), want)
    np.testing.assert_array_equal(model(ag.Tensor(IMAGES)).numpy(), want)


def test_samples_do_not_influence_each_other():
    model = CaiT(**SMALL)
    whole = model(IMAGES).numpy()
    for i in range(4):
        np.testing.assert_allclose(model(IMAGES[i : i + 1]).numpy()[0], whole[i], atol=1e-6)


def test_the_whole_model_has_right_gradients():
    model = CaiT(**{**SMALL, "depth": 1, "dim": 6, "img_size": 8})
    for p in model.parameters():
        p.data = p.data.astype(np.float64)
    images = IMAGES[:2, :, :8, :8].astype(np.float64)
    names = [
        "pos_embed",
        "cls_token",
        "blocks.0.attn.proj_l.weight",
        "blocks.0.gamma_2",
        "blocks_token_only.1.attn.q.bias",
    ]
    owners = dict(model.named_parameters())

    def loss(*values):
        for name, value in zip(names, values, strict=True):
            target = model
            *path, last = name.split(".")
            for part in path:
                target = target[int(part)] if part.isdigit() else getattr(target, part)
            setattr(target, last, value)
        return ops.cross_entropy(model.forward(images), [0, 3])

    ag.check_grads(loss, [owners[name].numpy() for name in names], directions=1, float32_tolerance=None)


def test_stochastic_depth_is_the_same_for_any_cut_of_the_batch():
    model = CaiT(**SMALL, drop_path_rate=0.5)
    stream = Stream(0, "train", step=3)
    with random.using(stream):
        whole = model(IMAGES).numpy()
    for i in range(4):
        with random.using(stream.at(sample=i)):
            np.testing.assert_allclose(model(IMAGES[i : i + 1]).numpy()[0], whole[i], atol=1e-6)
    assert not np.allclose(model(IMAGES).numpy(), model(IMAGES).numpy())  # without a stream, new masks at every call
    model.eval()
    np.testing.assert_array_equal(model(IMAGES).numpy(), model(IMAGES).numpy())


def test_stochastic_depth_is_on_both_branches_of_the_first_stage_only(monkeypatch):
    model, seen = CaiT(**SMALL, drop_path_rate=0.5), []

    def kept(self, samples):
        seen.append((self.purpose, self.rate, samples))
        return np.arange(0)

    monkeypatch.setattr(nn.DropPath, "kept", kept)
    with minicait.record(model) as inside:
        model(IMAGES)
    assert len({purpose for purpose, _, _ in seen}) == 4  # each its own masks
    assert [(rate, samples) for _, rate, samples in seen] == [(0.5, 4)] * 4
    assert not inside.attention and len(inside.class_attention) == 2  # what is dropped is not computed


def test_a_dropped_branch_is_left_out_for_its_sample_alone():
    """The same as computing all branches and dropping them afterwards, sample by sample."""
    model = CaiT(**SMALL, drop_path_rate=0.5)
    block = model.blocks[0]
    x = Tensor(np.random.default_rng(0).standard_normal((6, 16, 12)).astype(np.float32), requires_grad=True)
    with random.using(Stream(seed=3)):
        got = block(x)
        keep = [np.isin(np.arange(6), drop.kept(6)) * 2.0 for drop in (block.drop_path_1, block.drop_path_2)]
    assert 0 < keep[0].sum() < 12 and not np.array_equal(*keep)
    factors = [k.astype(np.float32)[:, None, None] for k in keep]
    half = x + block.gamma_1 * block.attn(block.norm1(x)) * factors[0]
    want = half + block.gamma_2 * block.mlp(block.norm2(half)) * factors[1]
    np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-6)
    v = np.random.default_rng(1).standard_normal(x.shape)
    wanted = [x, *(p for _, p in block.named_parameters())]
    for a, b in zip(ag.grad(got, wanted, v), ag.grad(want, wanted, v), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5)


def test_record_sees_inside():
    model = CaiT(**SMALL).eval()
    plain = model(IMAGES).numpy()
    with minicait.record(model) as seen:
        np.testing.assert_array_equal(model(IMAGES).numpy(), plain)
    assert list(seen.attention) == ["blocks.0.attn", "blocks.1.attn"]
    assert list(seen.class_attention) == ["blocks_token_only.0.attn", "blocks_token_only.1.attn"]
    maps = seen.attention["blocks.1.attn"]
    assert maps.before.shape == maps.after.shape == (4, 3, 16, 16)
    np.testing.assert_allclose(maps.before.sum(-1), 1, rtol=1e-5)
    mix = model.blocks[1].attn.proj_w
    want = np.einsum("gh,bhmn->bgmn", mix.weight.numpy(), maps.before) + mix.bias.numpy()[:, None, None]
    np.testing.assert_allclose(maps.after, want, atol=1e-6)
    of_class = seen.class_attention["blocks_token_only.0.attn"]
    assert of_class.shape == (4, 3, 1, 17)
    np.testing.assert_allclose(of_class.sum(-1), 1, rtol=1e-5)

    names = [f"{block}.{part}" for block in ("blocks.0", "blocks.1", "blocks_token_only.0", "blocks_token_only.1")
             for part in ("attn", "mlp")]  # fmt: skip
    assert list(seen.residual) == names
    first, second = seen.residual["blocks.0.attn"], seen.residual["blocks.0.mlp"]
    np.testing.assert_allclose(first.main + first.branch, second.main, atol=1e-6)
    ratio = np.linalg.norm(first.branch, axis=-1) / np.linalg.norm(first.main, axis=-1)
    assert first.ratio == pytest.approx(ratio.mean())

    with minicait.record(model) as outer, minicait.record(model) as inner:
        model(IMAGES)
    assert list(outer.attention) == list(inner.attention) and outer.residual.keys() == inner.residual.keys()
    other = CaiT(**SMALL)
    with minicait.record(other) as nothing:
        model(IMAGES)
    assert not nothing.attention and not nothing.residual


def test_checkpointed_blocks_give_the_same_gradients():
    model = CaiT(**SMALL, drop_path_rate=0.3)

    def loss():
        with random.using(Stream(1)):
            return ops.cross_entropy(model(IMAGES), [0, 1, 2, 3])

    plain = [g.numpy() for g in ag.grad(loss(), model.parameters())]
    for block in model.blocks:
        block.forward = lambda x, forward=block.forward: ag.checkpoint(forward, x)
    for a, b in zip(ag.grad(loss(), model.parameters()), plain, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
