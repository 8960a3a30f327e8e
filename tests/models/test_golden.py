"""The same function as the reference implementation, by files made from it once: logits and every gradient."""

import numpy as np
import pytest

import autograd as ag
from autograd import ops
from minicait.models.cait import CaiT
from tests.golden.recipe import FOLDER, MODELS, batch, random_weights


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-6), (np.float32, 1e-4)])
def test_equals_the_reference(name, dtype, tolerance):
    model = CaiT(**MODELS[name], layer_scale=1.0).astype(dtype)
    model.load_state_dict(random_weights({key: p.shape for key, p in model.named_parameters()}))
    images, labels = batch(MODELS[name])
    logits = model(images.astype(dtype))
    gradients = ag.grad(ops.cross_entropy(logits, labels), model.parameters())
    with np.load(FOLDER / f"{name}.npz") as golden:
        assert {f"gradient/{key}" for key, _ in model.named_parameters()} | {"logits"} == set(golden.files)
        np.testing.assert_allclose(logits.numpy(), golden["logits"], atol=tolerance * np.abs(golden["logits"]).max())
        wanted = {key: golden[f"gradient/{key}"] for key, _ in model.named_parameters()}
    largest = max(np.abs(g).max() for g in wanted.values())
    for (key, _), got in zip(model.named_parameters(), gradients, strict=True):
        scale = max(np.abs(wanted[key]).max(), 1e-4 * largest)
        rounding = np.finfo(dtype).eps * largest  # all that there is of the gradients that are zero in theory
        assert np.abs(got.numpy() - wanted[key]).max() <= tolerance * scale + rounding, key


def test_two_gradients_are_zero_in_theory():
    """A softmax over keys ignores what is the same for all keys: the bias of proj_l, and of k in class attention."""
    model = CaiT(**MODELS["square"], layer_scale=1.0).astype(np.float64)
    model.load_state_dict(random_weights({key: p.shape for key, p in model.named_parameters()}))
    images, labels = batch(MODELS["square"])
    gradients = ag.grad(ops.cross_entropy(model(images), labels), model.parameters())
    sizes = {key: np.abs(g.numpy()).max() for (key, _), g in zip(model.named_parameters(), gradients, strict=True)}
    zero = {key for key, size in sizes.items() if size < 1e-12 * max(sizes.values())}
    assert zero == {key for key in sizes if key.endswith(("attn.proj_l.bias", "attn.k.bias"))}
    assert len(zero) == 2 + 2
