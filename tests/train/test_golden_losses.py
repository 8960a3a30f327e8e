"""Objectives against the reference's losses: values, and gradients of both heads."""

import json
import re

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor
from minicait.data.mixing import one_hot
from minicait.models.deit import DeiT
from minicait.models.model import Outputs
from minicait.train import Recipe
from minicait.train.objectives import (
    BinaryCrossEntropy,
    CrossEntropy,
    HardDistillation,
    SoftDistillation,
    objective_for,
)
from tests.golden.recipe import FOLDER
from tests.models.test_golden_family import golden, gradient_error, loaded, sizes

GOLDEN = dict(np.load(FOLDER / "family/losses.npz"))
CLASSES = GOLDEN["logits"].shape[1]
MIXED = GOLDEN["targets:mixed_smoothing_0.0"]
DISTILLED = sorted({key.rpartition(":loss")[0] for key in GOLDEN if re.match("distil:.*:loss", key)})


def loss_and_gradients(objective, labels, *logits, **targets):
    logits = [Tensor(x, requires_grad=True) for x in logits]
    loss = objective(Outputs(*logits), {"labels": labels, **targets})
    return loss.item(), *(g.numpy() for g in ag.grad(loss, logits))


def assert_golden(name, objective, labels):
    loss, gradient = loss_and_gradients(objective, labels, GOLDEN["logits"])
    np.testing.assert_allclose(loss, GOLDEN[f"{name}:loss"], rtol=1e-13)
    np.testing.assert_allclose(gradient, GOLDEN[f"{name}:grad"], rtol=0, atol=1e-15)


def test_mixed_labels():
    lam, own = GOLDEN["lam"], one_hot(GOLDEN["labels"], CLASSES).astype(np.float64)
    np.testing.assert_allclose(lam * own + (1 - lam) * own[::-1], MIXED, rtol=0, atol=1e-15)
    assert_golden("ce:mixed", CrossEntropy(0.1), MIXED)  # smoothed after mixing, which is all the same
    assert_golden("ce:mixed", CrossEntropy(), GOLDEN["targets:mixed_smoothing_0.1"])
    assert_golden("ce:smoothed_labels", CrossEntropy(0.1), GOLDEN["labels"])


def targets_in(objective, labels):
    """Targets as the gradient tells them: (sigmoid(z) - t) / (B K)."""
    z = GOLDEN["logits"]
    _, gradient = loss_and_gradients(objective, labels, z)
    return 1 / (1 + np.exp(-z)) - z.size * gradient


def test_bce_of_deit3():
    """Every target above 0 becomes 1: two ones in a row, or one where both partners are of the same class."""
    objective = objective_for(Recipe(loss="bce", bce_threshold=0.0, mixup=0.8))
    assert_golden("bce:deit3", objective, MIXED)
    assert_golden("bce:timm_labels_smoothing_0", objective, GOLDEN["labels"])
    np.testing.assert_allclose(targets_in(objective, MIXED), GOLDEN["targets:deit3"], rtol=0, atol=1e-13)
    twins = one_hot(np.array([3, 1, 1, 3]), CLASSES).astype(np.float64)
    np.testing.assert_allclose(targets_in(objective, 0.7 * twins + 0.3 * twins[::-1]), twins, rtol=0, atol=1e-13)
    smoothed = targets_in(BinaryCrossEntropy(0.1, threshold=0.0), MIXED)  # which a recipe refuses
    np.testing.assert_allclose(smoothed, GOLDEN["targets:deit3_if_smoothed"], rtol=0, atol=1e-13)


def test_bce_of_timm():
    assert_golden("bce:timm_mixed", BinaryCrossEntropy(), GOLDEN["targets:mixed_smoothing_0.1"])
    assert_golden("bce:timm_mixed", BinaryCrossEntropy(0.1), MIXED)
    assert_golden("bce:timm_mixed_threshold_0.2", BinaryCrossEntropy(threshold=0.2), MIXED)
    assert_golden("bce:timm_labels_smoothing_0.1", BinaryCrossEntropy(0.1), GOLDEN["labels"])
    both = BinaryCrossEntropy(0.1, threshold=0.2)
    assert_golden("bce:timm_labels_smoothing_0.1_threshold_0.2", both, GOLDEN["labels"])


def test_a_threshold_hides_no_class_that_there_is_not():
    """On a GPU, where nobody checks class indices before, the loss of an invalid one is NaN."""
    nan = np.full((1, 3), np.nan)
    assert np.isnan(BinaryCrossEntropy(threshold=0.0).loss(Tensor(np.zeros((1, 3))), nan).item())


@pytest.mark.parametrize("name", DISTILLED)
def test_distillation_through_two_heads(name):
    """Hard and soft, at several weights and temperatures. The reference divides soft distillation by samples times
    classes, and we by samples, so its part is larger here by the number of classes.
    """
    kind, weight, temperature, targets = re.match(r"distil:(\w+)_alpha_([\d.]+)_tau_([\d.]+):(\w+)", name).groups()
    weight, temperature, by_head = float(weight), float(temperature), CrossEntropy()
    labels = GOLDEN["labels"] if targets == "labels" else GOLDEN["targets:mixed_smoothing_0.1"]
    objective = {"none": HardDistillation(by_head, 0.0), "hard": HardDistillation(by_head, weight),
                 "soft": SoftDistillation(by_head, weight, temperature)}[kind]  # fmt: skip
    factor = CLASSES if kind == "soft" else 1
    of_labels = (1 - weight) * GOLDEN[f"distil:none_alpha_0.5_tau_1.0:{targets}:loss"] if kind == "soft" else 0.0
    loss, *gradients = loss_and_gradients(
        objective, labels, GOLDEN["logits"], GOLDEN["logits_dist"], teacher=GOLDEN["teacher"]
    )
    np.testing.assert_allclose(loss, of_labels + factor * (GOLDEN[f"{name}:loss"] - of_labels), rtol=1e-13)
    for got, want in zip(gradients, (GOLDEN[f"{name}:grad:0"], factor * GOLDEN[f"{name}:grad:1"]), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", DISTILLED)
def test_distillation_through_one_head(name):
    """As through two heads with the same logits: the sum of both gradients."""
    kind, weight, temperature = re.match(r"distil:(\w+)_alpha_([\d.]+)_tau_([\d.]+)", name).groups()
    by_head, weight = CrossEntropy(0.1), 0.0 if kind == "none" else float(weight)
    objective = SoftDistillation(by_head, weight, float(temperature))
    objective = objective if kind == "soft" else HardDistillation(by_head, weight)
    x, t = GOLDEN["logits_dist"], GOLDEN["teacher"]
    loss, gradient = loss_and_gradients(objective, MIXED, x, teacher=t)
    both, *gradients = loss_and_gradients(objective, MIXED, x, x, teacher=t)
    assert loss == both
    np.testing.assert_allclose(gradient, sum(gradients), rtol=0, atol=1e-15)
    if kind != "none":  # of which the second is golden
        factor = CLASSES if kind == "soft" else 1
        np.testing.assert_allclose(gradients[1], factor * GOLDEN[f"{name}:grad:1"], rtol=0, atol=1e-15)


def test_the_distilled_model():
    """Losses of DeiT's two heads, and for the hard one the gradients of all its parameters."""
    z = golden("deit_distilled")
    config = json.loads(str(z["config"]))
    model = loaded(DeiT(**sizes(config), heads=config["heads"], distilled=True), z, np.float64).train()
    outputs = model.outputs(z["input"].astype(np.float64))
    targets = {"labels": z["labels"], "teacher": z["teacher"]}
    none, hard = (HardDistillation(CrossEntropy(), weight)(outputs, targets) for weight in (0.0, 0.5))
    soft, classes = SoftDistillation(CrossEntropy(), 0.1, 3.0)(outputs, targets), config["num_classes"]
    np.testing.assert_allclose([none.item(), hard.item()], [z["loss_none"], z["loss"]], rtol=1e-12)
    of_labels = 0.9 * z["loss_none"]
    np.testing.assert_allclose(soft.item(), of_labels + classes * (z["loss_soft"] - of_labels), rtol=1e-12)
    gradients = [g.numpy() for g in ag.grad(soft, [outputs.logits, outputs.distilled])]
    np.testing.assert_allclose(gradients[0], z["soft:grad_logits_cls"], rtol=0, atol=1e-14)
    np.testing.assert_allclose(gradients[1], classes * z["soft:grad_logits_dist"], rtol=0, atol=1e-14)
    assert gradient_error(model, hard, z) < 1e-8
