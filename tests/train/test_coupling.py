"""Samples that are coupled although nobody declared it: detected at the first step, and refused by name."""

import copy

import numpy as np
import pytest

import minicait
from autograd import ops, random
from autograd.random import Stream
from minicait import nn
from minicait.models.cait import CaiT
from minicait.train import Recipe, Trainer, value_and_grad
from tests.train.coupled import Centred, Counted, Gated, Mixed, Net, Undeclared
from tests.train.helpers import assert_same, loaders, small, some_batches, state

RECIPE = Recipe(epochs=2, batch_size=8, lr=1e-3, ema_decay=0.9, clip_norm=1.0, accumulate=2)


def deep(part):
    """A CaiT with something else in place of one of its many norms, in a branch that LayerScale makes small."""
    model = CaiT(img_size=16, patch_size=4, dim=12, heads=3, depth=4, num_classes=10, layer_scale=1e-6)
    model.blocks[2].norm2 = part
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Net(Undeclared(12)), r"Undeclared \(stages\.1\)"),
        (Net(Centred()), r"Centred \(stages\.1\)"),
        (Net(Mixed()), r"Mixed \(stages\.1\)"),
        (Net(Gated()), r"Gated \(stages\.1\)"),
        (Net(Counted()), r"Counted \(stages\.1\)"),
        (deep(Undeclared(12)), r"Undeclared \(blocks\.2\.norm2\)"),
        (deep(Centred()), r"Centred \(blocks\.2\.norm2\)"),
    ],
    ids=["batch norm", "mean", "neighbour", "gain of zero", "buffer", "batch norm, deep", "mean, deep"],
)
@pytest.mark.parametrize("how", ["threads", "processes", "fp16"])
def test_what_is_not_declared_is_refused_by_name(model, name, how):
    """At the first step, which changes nothing."""
    model = copy.deepcopy(model)
    options = {"precision": "fp16"} if how == "fp16" else {"processes": how == "processes"}
    trainer = Trainer(model, RECIPE, threads=2, micro_batch=2, **options)
    before = state(trainer)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{name} couples the samples of a batch .* set couples_samples = True"):
            trainer.step(*some_batches()[0])
    assert_same(state(trainer), before)
    assert trainer.batches == 0
    trainer.close()


def test_the_module_itself_may_be_the_one():
    class Whole(nn.Module):
        def __init__(self):
            self.head = nn.Linear(3, 10)

        def forward(self, images):
            x = self.head(ops.mean(images, (2, 3)))
            return x - x.mean(0)

    class Before(Whole):
        def forward(self, images):
            x = ops.mean(images, (2, 3))
            return self.head(x - x.mean(0))  # the head's outputs differ, but so do its inputs

    for kind in (Whole, Before):
        with pytest.raises(ValueError, match=f"{kind.__name__} couples the samples"):
            value_and_grad(kind(), ops.cross_entropy, *some_batches()[0], micro_batch=4)


def test_it_is_found_whatever_the_first_images_are():
    """Equal images, or ones that are not finite, would give the same results together as apart."""
    images, labels = some_batches()[0]
    for same in (np.zeros_like(images), np.repeat(images[:1], 8, 0), np.full_like(images, np.nan)):
        with pytest.raises(ValueError, match=r"Centred \(stages\.1\) couples"):
            value_and_grad(Net(Centred()), ops.cross_entropy, same, labels, micro_batch=2)


class InTraining(Centred):
    def forward(self, x):
        return super().forward(x) if self.training else x


def test_it_is_found_after_evaluation_mode_and_after_a_change_of_the_model():
    images, labels = some_batches()[0]
    model = Net(InTraining())
    value_and_grad(model.eval(), ops.cross_entropy, images, labels, micro_batch=2)
    with pytest.raises(ValueError, match=r"InTraining \(stages\.1\) couples"):
        value_and_grad(model.train(), ops.cross_entropy, images, labels, micro_batch=2)
    model.stages[1].eval()
    value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)
    with pytest.raises(ValueError, match=r"InTraining \(stages\.1\) couples"):
        Trainer(model, micro_batch=2, processes=False).step(images, labels)
    model.stages[1] = nn.LayerNorm(12)
    value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)
    model.stages.append(Centred())
    with pytest.raises(ValueError, match=r"Centred \(stages\.2\) couples"):
        value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)


def test_another_head_gives_outputs_of_another_shape():
    images, labels = some_batches()[0]
    model = Net(nn.LayerNorm(12))
    for classes in (10, 3):
        model.head = nn.Linear(12, classes)
        soft = np.eye(classes, dtype=np.float32)[labels % classes]
        value_and_grad(model, ops.cross_entropy, images, soft, micro_batch=2)


def test_worker_processes_look_in_the_mode_of_the_model():
    """They may have been forked in another."""
    trainer = Trainer(Net(InTraining()).eval(), RECIPE, threads=2, micro_batch=2, processes=True)
    with pytest.raises(ValueError, match=r"InTraining \(stages\.1\) couples"):
        trainer.fit(*loaders())
    assert trainer.gradients.processes is None


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_does_not_couple_is_never_refused(precision):
    images, labels = some_batches()[0]
    for seed in range(6):
        for rate in (0.0, 0.5, 0.9):
            model = small(drop_path_rate=rate, seed=seed, layer_scale=(1e-5, 0.5)[seed % 2])
            trainer = Trainer(model, RECIPE.changed(seed=seed), threads=1, micro_batch=2, precision=precision)
            trainer.step(images, labels)


def test_modules_of_every_form_can_be_looked_at():
    """Used twice, called in odd ways, without one row per sample, or with a forward of their own."""

    class Twice(nn.Module):
        def __init__(self):
            self.first = self.second = nn.Linear(3, 3)
            self.pair, self.scale, self.head = Pair(), Scale(), nn.Linear(3, 10)
            self.head.forward = lambda x: ops.linear(x, self.head.weight, self.head.bias)

        def forward(self, images):
            x, y = self.pair.forward(self.first(ops.mean(images, (2, 3))), swap=True)
            return self.head(self.second(x) * self.scale() + y)

    class Pair(nn.Module):
        def forward(self, x, swap=False):
            return (x, 2 * x) if swap else (2 * x, x)

    class Scale(nn.Module):
        def __init__(self):
            self.scale = nn.Parameter(np.ones((1, 3), np.float32))

        def forward(self):
            return self.scale * 2

    model, (images, labels) = Twice(), some_batches()[0]
    own = model.head.forward
    loss, _ = value_and_grad(model, ops.cross_entropy, images, labels, micro_batch=2)
    assert loss == pytest.approx(ops.cross_entropy(model(images), labels).item(), rel=1e-6)
    assert model.head.forward is own and "forward" not in vars(model.first)


def test_the_look_leaves_no_trace():
    model = small(drop_path_rate=0.3)
    before = {name: sorted(vars(m)) for name, m in model.named_modules()}
    with random.using(Stream(1, "a")):
        first = value_and_grad(model, ops.cross_entropy, *some_batches()[0], micro_batch=2)
        second = value_and_grad(model, ops.cross_entropy, *some_batches()[0], micro_batch=2)
    assert first[0] == second[0] and {name: sorted(vars(m)) for name, m in model.named_modules()} == before
    with minicait.record(model.eval()) as inside:
        value_and_grad(model, ops.cross_entropy, *some_batches()[0], micro_batch=8)
    assert len(next(iter(inside.attention.values())).before) == 8
