"""The variants that CaiT is compared with: right gradients, and the differences that they are meant to have."""

import numpy as np
import pytest

import autograd as ag
import minicait
from autograd import Tensor, ops, random
from minicait.models.cait import CaiT
from minicait.models.variants import RESIDUALS, Variant
from minicait.train import Recipe, Trainer, value_and_grad

SMALL = {"img_size": 8, "patch_size": 4, "dim": 6, "heads": 3, "depth": 2, "num_classes": 4, "layer_scale": 0.5}
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((4, 3, 8, 8)).astype(np.float32)
LABELS = [0, 3, 1, 2]
VARIANTS = {
    **{residual: {"residual": residual} for residual in RESIDUALS},
    "plain heads": {"talking_heads": False},
    "token from 0": {"pooling": "class_token"},
    "token from 1": {"pooling": "class_token", "insert_at": 1, "talking_heads": False},
    "masked token": {"pooling": "class_token", "insert_at": 1, "masked": True, "talking_heads": False},
    "average": {"pooling": "average", "residual": "plain"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def random_weights(model, seed=0):
    """No value at a special place, such as a scale at 0, where a wrong gradient could hide."""
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.data[...] = rng.normal(0, 0.5, p.shape)
    return model


def loss_of_flat_weights(model, images, labels):
    """The loss as a function of all parameters in one vector, and that vector."""
    places = [
        (module, name, value.shape)
        for _, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, minicait.nn.Parameter)
    ]
    whole = np.concatenate([p.numpy().ravel() for p in model.parameters()])

    def loss(weights):
        start = 0
        for module, name, shape in places:
            end = start + int(np.prod(shape))
            setattr(module, name, weights[start:end].reshape(shape))
            start = end
        return ops.cross_entropy(model.forward(Tensor(images)), labels)

    return loss, whole


@every_variant
def test_gradients_are_right(variant):
    model = random_weights(Variant(**variant, **SMALL).astype(np.float64))
    loss, weights = loss_of_flat_weights(model, IMAGES[:2].astype(np.float64), LABELS[:2])
    ag.check_grads(loss, weights, directions=12, float32_tolerance=None)


@every_variant
def test_value_and_grad_and_the_trainer_take_them(variant):
    model = Variant(**variant, **SMALL, seed=1)
    whole, gradients = value_and_grad(model, ops.cross_entropy, IMAGES, LABELS, micro_batch=4)
    pieces, same = value_and_grad(model, ops.cross_entropy, IMAGES, LABELS, threads=2, micro_batch=1)
    assert pieces == pytest.approx(whole, rel=1e-5) and gradients.keys() == dict(model.named_parameters()).keys()
    for name, g in gradients.items():
        np.testing.assert_allclose(same[name], g, atol=1e-5)
    trainer = Trainer(model, Recipe(lr=1e-2, ema_decay=0.9, clip_norm=1.0), threads=2, processes=False)
    losses = [trainer.step(IMAGES, LABELS) for _ in range(30)]
    assert losses[-1] < losses[0] - 0.1


def test_without_changes_it_is_cait():
    cait, variant = CaiT(**SMALL, seed=3), Variant(**SMALL, seed=3)
    for name, value in cait.state_dict().items():
        np.testing.assert_array_equal(variant.state_dict()[name], value)
    random_weights(cait)
    variant.load_state_dict(cait.state_dict())  # strict: the same names, and no other
    np.testing.assert_array_equal(variant(IMAGES).numpy(), cait(IMAGES).numpy())
    (_, ours), (_, theirs) = (value_and_grad(m, ops.cross_entropy, IMAGES, LABELS) for m in (variant, cait))
    for name, g in theirs.items():
        np.testing.assert_array_equal(ours[name], g)
    with minicait.record(cait) as a, minicait.record(variant) as b:
        cait(IMAGES), variant(IMAGES)
    assert a.attention.keys() == b.attention.keys() and a.class_attention.keys() == b.class_attention.keys()
    assert {n: r.ratio for n, r in a.residual.items()} == {n: r.ratio for n, r in b.residual.items()}


def test_it_drops_branches_as_cait_does():
    found = []
    for model in (CaiT(**SMALL, drop_path_rate=0.5), Variant(**SMALL, drop_path_rate=0.5)):
        with random.using(random.Stream(0, "train")):
            found.append(random_weights(model)(IMAGES).numpy())
    np.testing.assert_array_equal(*found)
    assert not np.allclose(found[0], model.eval()(IMAGES).numpy())


def test_a_scale_can_be_taken_into_the_weights():
    """So no way of adding a branch can compute what another cannot; only training differs (section 2)."""
    scaled = random_weights(Variant("layer_scale", **SMALL))
    plain, scalar = Variant("plain", **SMALL), Variant("scalar", **SMALL)
    folded = dict(scaled.state_dict())
    for prefix in ("blocks.0", "blocks.1", "blocks_token_only.0", "blocks_token_only.1"):
        for gamma, layer in ((f"{prefix}.gamma_1", "attn.proj"), (f"{prefix}.gamma_2", "mlp.fc2")):
            scale = folded.pop(gamma)
            folded[f"{prefix}.{layer}.weight"] = scale[:, None] * folded[f"{prefix}.{layer}.weight"]
            folded[f"{prefix}.{layer}.bias"] = scale * folded[f"{prefix}.{layer}.bias"]
    plain.load_state_dict(folded)
    np.testing.assert_allclose(plain(IMAGES).numpy(), scaled(IMAGES).numpy(), rtol=1e-4, atol=1e-5)
    ones = {name: np.ones(1) for name, _ in scalar.named_parameters() if "gamma" in name}
    scalar.load_state_dict({**folded, **ones})
    np.testing.assert_array_equal(scalar(IMAGES).numpy(), plain(IMAGES).numpy())


@pytest.mark.parametrize("residual", ["rezero", "rezero_norm"])
def test_rezero_begins_with_no_branch_at_all(residual):
    model = Variant(residual, **SMALL)
    with minicait.record(model) as inside:
        model(IMAGES)
    assert len(inside.residual) == 8 and all(not r.branch.any() for r in inside.residual.values())
    assert any("norm1" in name for name in model.state_dict()) == (residual == "rezero_norm")
    assert model.state_dict()["blocks.0.gamma_1"].shape == (1,)


def test_the_first_weights_are_those_of_cait():
    state = CaiT(**SMALL, seed=5).state_dict()
    for variant in VARIANTS.values():
        for name, value in Variant(**variant, **SMALL, seed=5).state_dict().items():
            if "gamma" not in name:
                np.testing.assert_array_equal(value, state[name])


def test_a_class_token_joins_the_patches_where_it_is_told_to():
    for insert_at in (0, 1):
        model = random_weights(Variant(pooling="class_token", insert_at=insert_at, **SMALL))
        with minicait.record(model) as inside:
            model(IMAGES)
        tokens = [maps.before.shape[-1] for maps in inside.attention.values()]
        assert tokens == [5 if i >= insert_at else 4 for i in range(2)] and not inside.class_attention


@pytest.mark.parametrize("insert_at", [0, 1])
def test_patches_do_not_depend_on_a_masked_token(insert_at):
    options = {"pooling": "class_token", "insert_at": insert_at, "talking_heads": False}
    alone = random_weights(Variant(pooling="average", talking_heads=False, **SMALL))

    def patches(model):
        with minicait.record(model) as inside:
            model(IMAGES)
        last = inside.residual["blocks.1.mlp"]
        return (last.main + last.branch)[:, -4:]

    for masked in (True, False):
        model = random_weights(Variant(masked=masked, **options, **SMALL))
        model.load_state_dict({**model.state_dict(), **alone.state_dict()})
        assert np.allclose(patches(model), patches(alone), atol=1e-5) == masked
        before = model(IMAGES).numpy()
        model.cls_token.data[...] += RNG.standard_normal(6)
        assert not np.allclose(model(IMAGES).numpy(), before)  # the class does depend on it
        assert np.allclose(patches(model), patches(alone), atol=1e-5) == masked


def test_plain_heads_are_those_of_identity_mixing():
    plain, talking = (random_weights(Variant(talking_heads=t, **SMALL)) for t in (False, True))
    state = dict(plain.state_dict())
    for i in range(2):
        for part in ("proj_l", "proj_w"):
            state |= {f"blocks.{i}.attn.{part}.weight": np.eye(3), f"blocks.{i}.attn.{part}.bias": np.zeros(3)}
    talking.load_state_dict(state)
    np.testing.assert_allclose(talking(IMAGES).numpy(), plain(IMAGES).numpy(), rtol=1e-4, atol=1e-5)


def test_the_order_of_patches_is_all_the_same_to_an_average():
    model = random_weights(Variant(pooling="average", **SMALL))
    model.pos_embed.data[...] = 0
    turned = np.concatenate([IMAGES[..., 4:], IMAGES[..., :4]], axis=-1)  # the two columns of patches change places
    np.testing.assert_allclose(model(turned).numpy(), model(IMAGES).numpy(), atol=1e-5)
    assert "cls_token" not in model.state_dict()


def test_its_weights_are_not_taken_for_those_of_cait(tmp_path):
    with pytest.raises(ValueError, match="Variant is not a model of a family, so no file can describe it"):
        minicait.save_weights(Variant(**SMALL), tmp_path / "variant.safetensors")
    assert not list(tmp_path.iterdir())
    np.savez(tmp_path / "variant.npz", **Variant(talking_heads=False, **SMALL).state_dict())
    with pytest.raises(ValueError, match=r"variant\.npz does not hold the weights of a known model"):
        minicait.load_model(tmp_path / "variant.npz")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"residual": "post"}, "residual must be one of plain, rezero, .* got 'post'"),
        ({"pooling": "max"}, "pooling must be one of class_attention, .* got 'max'"),
        ({"pooling": "class_token", "insert_at": 2}, "insert_at must be the index of a block, 0 to 1, got 2"),
        ({"pooling": "class_token", "masked": True}, 'masked=True needs pooling="class_token" and talking_heads=False'),
    ],
)
def test_what_there_is_not(change, sentence):
    with pytest.raises(ValueError, match=f"Variant: {sentence}"):
        Variant(**change, **SMALL)
