"""Mimetic initialisation: the patterns of the paper, in every family that has self-attention."""

import numpy as np
import pytest

import autograd as ag
import minicait
from minicait import create_model
from minicait.models.cait import CaiT
from minicait.models.mimetic import initialise_mimetically, waves
from minicait.run.plan import Plan
from minicait.train import Recipe


def weights(model):
    return {name: value.copy() for name, value in model.state_dict().items()}


def started(seed=0):
    model = CaiT(num_classes=3, img_size=32, patch_size=4, dim=96, depth=2, heads=2, layer_scale=0.1).eval()
    before = weights(model)
    initialise_mimetically(model, seed)
    return model, before


def test_products_of_weights():
    model, _ = started()
    d, heads = 96, 2
    for block in model.blocks:
        q, k, v = block.attn.qkv.weight.numpy().reshape(3, heads, d // heads, d).astype(float)
        for head in range(heads):
            product = q[head].T @ k[head]
            values = np.linalg.svd(product, compute_uv=False)
            assert values[d // heads - 1] > 0.5 and values[d // heads :].max() < 1e-5  # the larger half
            assert 0.7 / 2 < np.diag(product).mean() < 0.7
        product = block.attn.proj.weight.numpy() @ v.reshape(d, d) + 0.4 * np.eye(d)
        assert product.mean() == pytest.approx(0, abs=0.002)
        assert product.std() == pytest.approx(0.4 * d**-0.5, rel=0.05)
        for mixing in (block.attn.proj_l, block.attn.proj_w):
            np.testing.assert_allclose(mixing.weight.numpy(), np.eye(heads), atol=0.1)


def test_narrow_layers_are_not_weak():
    model, before = started()
    for layer in (model.blocks[1].mlp.fc1, model.blocks[0].mlp.fc2, model.blocks_token_only[0].attn.k):
        inputs = layer.weight.shape[1]
        assert layer.weight.numpy().std() == pytest.approx(inputs**-0.5, rel=0.05)
        assert layer.weight.numpy().mean() == pytest.approx(0, abs=0.002)
    assert before["blocks.1.mlp.fc1.weight"].std() == pytest.approx(0.02, rel=0.05)


def test_neighbours_resemble_each_other():
    positions = waves(8, 8, 96)
    norms = np.linalg.norm(positions, axis=1)
    np.testing.assert_allclose(norms, 48**0.5, rtol=1e-6)  # sin^2 + cos^2 = 1
    likeness = (positions @ positions.T / 48).reshape(8, 8, 8, 8)
    from_corner = likeness[0, 0]
    assert (np.diff(from_corner[0, :4]) < 0).all() and (np.diff(from_corner[:4, 0]) < 0).all()
    assert from_corner[0, 1] == pytest.approx(from_corner[1, 0])
    assert likeness[3, 3, 3, 4] == pytest.approx(likeness[5, 2, 5, 3])  # by the distance, wherever it is
    assert waves(2, 3, 6).shape == (6, 6)  # channels that do not divide by four


def test_attention_starts_local():
    """A patch looks at itself and its neighbours; with the reference's start it looks everywhere alike."""
    model, before = started()
    images = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    near = np.abs(np.subtract.outer(np.arange(64) // 8, np.arange(64) // 8)) <= 1
    near &= np.abs(np.subtract.outer(np.arange(64) % 8, np.arange(64) % 8)) <= 1

    def share():
        with ag.no_grad(), minicait.record(model) as inside:
            model(images)
        (first, _) = inside.attention.values()
        return float((first.before * near).sum(-1).mean())

    mimetic = share()
    model.load_state_dict(before)
    assert share() == pytest.approx(near.mean(), rel=0.1) and mimetic > 3 * share()


def test_seeds_and_what_stays():
    (model, before), (again, _), (other, _) = started(), started(), started(seed=1)
    assert all(np.array_equal(a, weights(again)[n]) for n, a in weights(model).items())
    changed = {name for name, value in weights(model).items() if not np.array_equal(value, before[name])}
    mlp, attention = ("mlp.fc1", "mlp.fc2"), ("attn.qkv", "attn.proj", "attn.proj_l", "attn.proj_w")
    layers = [f"blocks.{i}.{layer}" for i in range(2) for layer in mlp + attention]
    layers += [
        f"blocks_token_only.{i}.{layer}" for i in range(2) for layer in (*mlp, *(f"attn.{n}" for n in (*"qkv", "proj")))
    ]
    assert changed == {"pos_embed", *(f"{layer}.weight" for layer in layers)}
    assert not np.array_equal(model.blocks[0].attn.qkv.weight.data, other.blocks[0].attn.qkv.weight.data)


@pytest.mark.parametrize("name, positions", [
    ("deit_mini_32", 1), ("deit_mini_distilled_32", 2), ("deit3_mini_32", 0), ("lvvit_mini_32", 1),
    ("grafit_deit_mini_32", 1),
])  # fmt: skip
def test_other_families(name, positions):
    model = create_model(name, 5)
    before = weights(model)
    initialise_mimetically(model)
    (table,) = (name for name in before if name.endswith("pos_embed"))
    after = weights(model)
    assert np.array_equal(after[table][:, :positions], before[table][:, :positions])  # of tokens that are no patches
    np.testing.assert_allclose(np.linalg.norm(after[table][0, positions:], axis=1), (after[table].shape[2] / 2) ** 0.5,
                               rtol=1e-5)  # fmt: skip
    assert sum(not np.array_equal(after[n], before[n]) for n in before if "attn" in n) >= 2 * 4


@pytest.mark.parametrize("name", ["resmlp_mini_32", "patchconvnet_mini_32"])
def test_models_without_self_attention(name):
    model = create_model(name, 5)
    before = weights(model)
    initialise_mimetically(model)
    assert all(np.array_equal(value, before[n]) for n, value in weights(model).items())


def test_a_recipe_asks_for_it():
    plain, mimetic = (Plan(Recipe(init=how)).initial_model(["a", "b"])[0] for how in ("reference", "mimetic"))
    assert np.abs(plain.pos_embed.data).max() < 0.2 < np.abs(mimetic.pos_embed.data).max()
    with pytest.raises(ValueError, match="init must be reference or mimetic, got 'random'"):
        Recipe(init="random")
