"""Objectives against their formulas, and how a recipe chooses one."""

import csv
from functools import partial

import numpy as np
import pytest

from autograd import Tensor, ops
from minicait import nn
from minicait.cli import main
from minicait.data.mixing import one_hot
from minicait.models.model import Outputs
from minicait.train import Recipe, Trainer
from minicait.train.objectives import (
    BinaryCrossEntropy,
    CrossEntropy,
    HardDistillation,
    LossFunction,
    SoftDistillation,
    objective_for,
)
from tests.train.helpers import small, some_batches

RNG = np.random.default_rng(0)
LOGITS, TEACHER = RNG.standard_normal((2, 4, 10))
LABELS = np.array([1, 2, 3, 4])
SOFT = RNG.dirichlet(np.ones(10), 4)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def smoothed(labels, smoothing):
    soft = np.eye(10)[labels] if labels.ndim == 1 else labels
    return (1 - smoothing) * soft + smoothing / 10


def cross_entropy(logits, labels, smoothing=0.0):
    return -(smoothed(labels, smoothing) * np.log(softmax(logits))).sum(-1).mean()


def binary(logits, labels, smoothing=0.0):
    p, t = 1 / (1 + np.exp(-logits)), smoothed(labels, smoothing)
    return -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()


def value(objective, labels, **targets):
    return objective(Outputs(Tensor(LOGITS)), {"labels": labels, **targets}).item()


@pytest.mark.parametrize("labels", [LABELS, SOFT], ids=["classes", "soft"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "formula"), [(CrossEntropy, cross_entropy), (BinaryCrossEntropy, binary)])
def test_labels_alone(kind, formula, labels, smoothing):
    """Smoothing of soft labels too: mixup blends the labels, and the objective smooths them."""
    assert value(kind(smoothing), labels) == pytest.approx(formula(LOGITS, labels, smoothing))


@pytest.mark.parametrize("labels", [LABELS, SOFT], ids=["classes", "soft"])
@pytest.mark.parametrize(("kind", "formula"), [(CrossEntropy, cross_entropy), (BinaryCrossEntropy, binary)])
def test_hard_distillation(kind, formula, labels):
    """A teacher's decision is not smoothed."""
    got = value(HardDistillation(kind(0.1), 0.3), labels, teacher=TEACHER)
    assert got == pytest.approx(0.7 * formula(LOGITS, labels, 0.1) + 0.3 * cross_entropy(LOGITS, TEACHER.argmax(1)))


@pytest.mark.parametrize("labels", [LABELS, SOFT], ids=["classes", "soft"])
@pytest.mark.parametrize(("kind", "formula"), [(CrossEntropy, cross_entropy), (BinaryCrossEntropy, binary)])
def test_soft_distillation(kind, formula, labels):
    p, q = softmax(TEACHER / 2), softmax(LOGITS / 2)
    divergence = (p * np.log(p / q)).sum(-1).mean()
    got = value(SoftDistillation(kind(0.1), 0.4, 2.0), labels, teacher=TEACHER)
    assert got == pytest.approx(0.6 * formula(LOGITS, labels, 0.1) + 0.4 * 4 * divergence)


@pytest.mark.parametrize(
    "objective",
    [
        CrossEntropy(0.1),
        BinaryCrossEntropy(0.1),
        BinaryCrossEntropy(threshold=0.0),
        HardDistillation(CrossEntropy()),
        SoftDistillation(CrossEntropy()),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_each_is_a_mean_over_samples(objective):
    """As they say, so that nobody checks it."""
    assert objective.is_mean

    def part(rows):
        targets = {"labels": LABELS[rows], "teacher": TEACHER[rows]}
        return objective(Outputs(Tensor(LOGITS[rows])), targets).item()

    assert (part(slice(1)) + 3 * part(slice(1, 4))) / 4 == pytest.approx(part(slice(4)))


def test_a_loss_function_sees_logits_and_labels():
    loss = LossFunction(partial(ops.cross_entropy, label_smoothing=0.1))
    assert value(loss, LABELS) == pytest.approx(cross_entropy(LOGITS, LABELS, 0.1)) and not hasattr(loss, "is_mean")


def test_a_recipe_chooses():
    chosen = {
        Recipe(): CrossEntropy(0.0),
        Recipe(label_smoothing=0.1): CrossEntropy(0.1),
        Recipe(loss="bce", label_smoothing=0.1): BinaryCrossEntropy(0.1),
        Recipe(loss="bce", bce_threshold=0.2, token_weight=2.0): BinaryCrossEntropy(0.0, 2.0, 0.2),
        Recipe(distillation="hard", distillation_weight=0.3): HardDistillation(CrossEntropy(), 0.3),
        Recipe(distillation="soft", temperature=2, loss="bce"): SoftDistillation(BinaryCrossEntropy(), 0.5, 2),
    }
    assert {recipe: objective_for(recipe) for recipe in chosen} == chosen
    with pytest.raises(ValueError, match="loss must be cross_entropy, bce or neighbours, got 'hinge'"):
        Recipe(loss="hinge")


@pytest.mark.parametrize("mixed", [False, True], ids=["classes", "soft"])
def test_bce_trains(mixed):
    images, labels = some_batches()[0]
    targets = one_hot(labels, 10) * np.float32(0.7) + one_hot(labels[::-1], 10) * np.float32(0.3) if mixed else labels
    trainer, model = Trainer(small(), Recipe(loss="bce", lr=3e-3, label_smoothing=0.1), threads=1), small()
    losses = [trainer.step(images, targets) for _ in range(20)]
    assert losses[0] == pytest.approx(binary(model(images).numpy(), targets, 0.1), rel=1e-5)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_a_class_that_there_is_not(loss):
    """Also for a module that does not know how many there are."""

    class Means(nn.Module):
        def __init__(self):
            self.head = nn.Linear(3, 10)

        def forward(self, images):
            return self.head(ops.mean(images, (2, 3)))

    images, labels = some_batches()[0]
    labels[2] = 10
    for model in (small(), Means()):
        with pytest.raises(IndexError, match=r"class indices must be in \[0, 9\], got \d to 10"):
            Trainer(model, Recipe(loss=loss), threads=1).step(images, labels)


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_student_learns_from_a_teacher(kind, loss):
    images, labels = some_batches()[0]
    recipe = Recipe(distillation=kind, lr=3e-3, distillation_weight=1.0, loss=loss)
    student = Trainer(small(), recipe, threads=1, teacher=small(seed=5).eval())
    losses = [student.step(images, labels) for _ in range(30)]
    assert losses[-1] < losses[0]


def test_bce_from_the_command_line(narrow, tmp_path, capsys):
    options = ["--preset", "tiny", "--img-size", "16", "--patch-size", "8", "--train-images", "32",
               "--val-images", "10", "--batch-size", "8", "--epochs", "1", "--device", "cpu",
               "--out", str(tmp_path)]  # fmt: skip
    assert main(["train", *options, "--set", "loss=bce"]) == 0
    assert "loss bce" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "shapes-tiny-1/log.csv").read_text().splitlines())
    assert 0.2 < float(row["loss"]) < 0.8  # the mean over ten classes, of which each is about ln 2 at first
    assert main(["train", *options, "--set", "loss=hinge"]) == 2
    assert "loss must be cross_entropy, bce or neighbours, got 'hinge'" in capsys.readouterr().err


def test_an_objective_and_targets_of_ones_own():
    """A dict of targets is cut along the samples, whatever is in it."""
    seen = []

    def weighted(outputs, targets):
        seen.append(len(targets["weight"]))
        losses = ops.cross_entropy(outputs.logits, targets["labels"], reduction="none")
        return (losses * targets["weight"]).mean()

    images, labels = some_batches()[0]
    weight = np.linspace(0, 1, len(labels), dtype=np.float32)
    trainer = Trainer(small(), objective=weighted, processes=False, micro_batch=2)
    loss = trainer.step(images, {"labels": labels, "weight": weight})
    want = (ops.cross_entropy(small()(images), labels, reduction="none") * weight).mean().item()
    assert loss == pytest.approx(want, rel=1e-5) and set(seen) == {2, len(labels)}  # the batch, to see if it is a mean
