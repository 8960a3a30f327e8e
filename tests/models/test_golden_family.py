"""The same functions as the references of every family, by files made from them: logits, tokens, and every gradient."""

import json

import numpy as np
import pytest

import autograd as ag
from minicait import record
from minicait.models.deit import DeiT
from minicait.models.deit3 import DeiT3
from minicait.models.lvvit import LVViT
from minicait.models.patchconvnet import PatchConvNet
from minicait.models.resmlp import ResMLP
from minicait.nn.mix_token import in_box, mix_box
from minicait.train.objectives import CrossEntropy, HardDistillation
from tests.golden.recipe import FOLDER

COMMON = ("img_size", "patch_size", "dim", "depth", "num_classes")
MODELS = {
    "deit": lambda c: DeiT(**sizes(c), heads=c["heads"]),
    "deit_distilled": lambda c: DeiT(**sizes(c), heads=c["heads"], distilled=True),
    "deit3": lambda c: DeiT3(**sizes(c), heads=c["heads"]),
    "resmlp": lambda c: ResMLP(**sizes(c)),
    "patchconvnet": lambda c: PatchConvNet(**sizes(c)),
    "patchconvnet_multi": lambda c: PatchConvNet(**sizes(c), multi_class=True),
}
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-4)])


def sizes(config):
    return {name: config[name] for name in COMMON}


def golden(name):
    with np.load(FOLDER / "family" / f"{name}.npz") as file:
        return dict(file)


def weights_of(z):
    return {key.partition(":")[2]: value for key, value in z.items() if key.startswith(("weight:", "buffer:"))}


def loaded(model, z, dtype):
    model.astype(dtype).load_state_dict(weights_of(z))
    return model


def close(got, want, tolerance):
    got = got.numpy() if isinstance(got, ag.Tensor) else got
    return np.abs(got - want).max() <= tolerance * np.abs(want).max()


def gradient_error(model, loss, z):
    """The largest error of a gradient, relative to its largest value, or to 1e-4 of the model's where it is tiny."""
    gradients = ag.grad(loss, model.parameters())
    wanted = {name: z[f"grad:{name}"] for name, _ in model.named_parameters()}
    largest = max(np.abs(g).max() for g in wanted.values())
    return max(
        np.abs(g.numpy() - wanted[name]).max() / max(np.abs(wanted[name]).max(), 1e-4 * largest)
        for (name, _), g in zip(model.named_parameters(), gradients, strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
@PRECISIONS
def test_logits_and_gradients(name, dtype, tolerance):
    z = golden(name)
    model = loaded(MODELS[name](json.loads(str(z["config"]))), z, dtype)
    images = z["input"].astype(dtype)
    assert close(model.eval()(images), z["logits"], tolerance)
    objective = CrossEntropy() if name != "deit_distilled" else HardDistillation(CrossEntropy(), 0.5)
    targets = {"labels": z["labels"], "teacher": z.get("teacher")}
    loss = objective(model.train().outputs(images), targets)
    assert abs(loss.item() - z["loss"]) <= tolerance * abs(z["loss"])
    error = gradient_error(model, loss, z)
    print(f"\n{name} in {dtype.__name__}: gradients {error:.1e}")
    assert error <= 10 * tolerance


@pytest.mark.parametrize("name", MODELS)
def test_tokens_after_every_block(name):
    """If a model is wrong, this says where it starts to be."""
    z = golden(name)
    model = loaded(MODELS[name](json.loads(str(z["config"]))), z, np.float64).eval()
    assert close(model.patch_embed(ag.Tensor(z["input"].astype(np.float64))), z["tokens:stem"], 1e-12)
    with record(model) as inside:
        model(z["input"].astype(np.float64))
    last = {int(name.split(".")[1]): r for name, r in inside.residual.items() if name.startswith("blocks.")}
    for i, residual in last.items():
        assert close(residual.main + residual.branch, z[f"tokens:blocks.{i}"], 1e-12)
    if "class_attention" in z:
        (maps,) = inside.class_attention.values()
        assert close(maps, z["class_attention"], 1e-12)


def test_two_heads():
    z = golden("deit_distilled")
    model = loaded(MODELS["deit_distilled"](json.loads(str(z["config"]))), z, np.float64)
    images = z["input"].astype(np.float64)
    training, evaluation = model.train().outputs(images), model.eval().outputs(images)
    assert close(training.logits, z["logits_cls"], 1e-12) and close(training.distilled, z["logits_dist"], 1e-12)
    assert close(evaluation.logits, z["logits"], 1e-12) and close(evaluation.distilled, z["logits_dist"], 1e-12)
    assert close(model.train()(images), z["logits"], 1e-12)  # called, it returns what one evaluates, in either mode


# ---- LV-ViT: batch statistics, and a box of tokens that is exchanged


def lvvit(z, dtype=np.float64, **changes):
    c = json.loads(str(z["config"]))
    sizes = {name: c[name] for name in ("img_size", "patch_size", "depth", "num_classes", "mlp_ratio")}
    sizes |= {"dim": c["embed_dim"], "heads": c["num_heads"], "residual_factor": c["skip_lam"]}
    return loaded(LVViT(**sizes | changes), z, dtype)


def mixing(model, box):
    model.train().mix_token.enabled = True
    model.mix_token.box = lambda grid: tuple(box)
    return model


def test_lvvit_in_evaluation():
    z = golden("lvvit_tiny")
    images = z["input"].astype(np.float64)
    model = lvvit(z).eval()
    outputs = model.outputs(images)
    assert close(model.patch_embed(ag.Tensor(images)), z["eval_stem"].transpose(0, 2, 3, 1), 1e-12)
    assert close(outputs.logits, z["logits"], 1e-12) and close(outputs.tokens, z["eval_aux"], 1e-12)
    assert close(outputs.features, z["eval_tokens"][:, 0], 1e-12)
    for factor in (1.0, 3.0):
        assert close(lvvit(z, residual_factor=factor).eval()(images), z[f"logits_skip_lam_{factor:g}"], 1e-12)


@PRECISIONS
def test_lvvit_in_training(dtype, tolerance):
    z = golden("lvvit_tiny")
    images, model = z["input"].astype(dtype), mixing(lvvit(z, dtype), z["bbox"])
    outputs = model.outputs(images)
    assert close(outputs.logits, z["train_cls"], tolerance) and close(outputs.tokens, z["train_aux_mixed"], tolerance)
    for name, buffer in model.named_buffers():
        assert close(buffer, z[f"buffer_after:{name}"], tolerance), name
    labels = {"labels": z["cls_targets_mixed"], "token_labels": z["token_targets_mixed"].swapaxes(1, 2)}
    loss = CrossEntropy(token_weight=1.0)(outputs, {name: v.astype(dtype) for name, v in labels.items()})
    assert abs(loss.item() - z["loss"]) <= tolerance * z["loss"]
    error = gradient_error(model, loss, z)
    print(f"\nlvvit in {dtype.__name__}: gradients {error:.1e}")
    assert error <= (1e-6 if dtype == np.float64 else 10 * tolerance)  # some gradients are stored in float32


def test_lvvit_gradients_that_are_stored_in_float32_by_their_sums():
    z = golden("lvvit_tiny")
    model = mixing(lvvit(z), z["bbox"])
    labels = {"labels": z["cls_targets_mixed"], "token_labels": z["token_targets_mixed"].swapaxes(1, 2)}
    loss = CrossEntropy(token_weight=1.0)(model.outputs(z["input"].astype(np.float64)), labels)
    gradients = dict(zip(dict(model.named_parameters()), ag.grad(loss, model.parameters()), strict=True))
    sums = {key.partition(":")[2]: value for key, value in z.items() if key.startswith("grad_sums:")}
    assert len(sums) == 3
    for name, want in sums.items():
        g = gradients[name].numpy()
        np.testing.assert_allclose([g.sum(), np.abs(g).sum(), (g * g).sum()], want, rtol=1e-9, atol=1e-12)


def test_mixed_labels_are_those_of_the_reference():
    """Outputs stay mixed and labels are mixed alike: the same loss as with outputs that are put back."""
    z = golden("lvvit_tiny")
    model = mixing(lvvit(z), z["bbox"])
    target = z["target"].swapaxes(1, 2)  # ground truth, class token, 24 tokens
    mixed, _ = model.mix_token.labels(target[:, 1], model.grid, 7)
    np.testing.assert_allclose(mixed, z["cls_targets_mixed"], rtol=1e-12)
    soft, of_tokens = model.mix_token.labels(target[:, 0], model.grid, 7)
    outputs = model.outputs(z["input"].astype(np.float64))
    both = {"labels": soft, "token_labels": of_tokens}
    assert abs(CrossEntropy(token_weight=1.0)(outputs, both).item() - z["loss_image_label_only"]) < 1e-12
    put_back = outputs.tokens.numpy().reshape(4, 4, 6, 7)
    inside = in_box(model.grid, tuple(z["bbox"]))[..., None]
    assert close(np.where(inside, put_back[::-1], put_back).reshape(4, 24, 7), z["train_aux"], 1e-12)


def test_losses_with_token_labels():
    """Eqs. 6 and 7 with the weights of the paper and of the code, and re-labeling, in the terms of the reference."""
    z = golden("lvvit_tiny")
    model = mixing(lvvit(z), z["bbox"])
    target = z["target"].swapaxes(1, 2)  # ground truth, class token, 24 tokens
    outputs = model.outputs(z["input"].astype(np.float64))
    labels, of_tokens = model.mix_token.labels(target[:, 1], model.grid, 7, target[:, 2:])
    mixed = {"labels": labels, "token_labels": of_tokens}

    def loss(weight, targets=mixed):
        return CrossEntropy(token_weight=weight)(outputs, targets).item()

    assert abs(loss(1.0) - z["loss"]) < 1e-12
    assert abs(loss(0.5) - z["loss_dense_0.5"]) < 1e-12
    assert abs(loss(0.0) - z["loss_cls_only"]) < 1e-12
    assert abs(loss(1.0) - loss(0.0) - z["loss_dense_only"]) < 1e-12
    assert abs(loss(0.0, {"labels": target[:, 1]}) - z["loss_relabel"]) < 1e-12  # of the class token alone, not mixed
    not_mixed = {"labels": target[:, 1], "token_labels": of_tokens}
    assert abs(loss(1.0, not_mixed) - z["loss_no_box"]) < 1e-12


@pytest.mark.parametrize(("images", "box", "cls"), [(3, "bbox", "odd_train_cls"), (4, "empty_bbox", "empty_train_cls")])
def test_an_image_that_is_its_own_partner_and_an_empty_box(images, box, cls):
    z = golden("lvvit_tiny")
    outputs = mixing(lvvit(z), z[box]).outputs(z["input"][:images].astype(np.float64))
    assert close(outputs.logits, z[cls], 1e-12)


def test_boxes():
    z = golden("lvvit_tiny")
    for (rows, columns, kept, r, c), want in zip(z["box_cases"], z["box_results"], strict=True):
        assert mix_box((int(rows), int(columns)), kept, (int(r), int(c))) == tuple(want)


def test_drop_rates_grow_linearly():
    model = LVViT(10, 32, 8, 16, 16, 2, drop_path_rate=0.1, stem_channels=4)
    rates = [block.drop_path_2.rate for block in model.blocks]
    np.testing.assert_allclose(rates, golden("lvvit_tiny")["drop_path_rates"], rtol=1e-6)
