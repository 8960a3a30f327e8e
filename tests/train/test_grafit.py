"""Training a Grafit: the same bits on any number of workers, and after a stop; settings that do not go together."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

import minicait
from minicait import nn
from minicait.cli import main
from minicait.data import Grouped, Loader, Shapes
from minicait.data.loader import InMemory
from minicait.data.transforms import Augmentation, training
from minicait.models.grafit import Grafit
from minicait.nn import normalised
from minicait.optim import EMA, LossScaler
from minicait.train import RECIPES, NotFiniteError, Recipe, Trainer
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from minicait.train.gradients import Gradients
from minicait.train.grafit import Neighbours
from minicait.train.target_network import TargetNetwork
from minicait.train.workers import can_fork
from tests.models.small_models import SMALL_GRAFITS, SMALL_MODELS
from tests.train.helpers import Overflowing, assert_same, spoiled, state
from tests.train.runs import assert_same_run

RECIPE = Recipe(
    epochs=2, batch_size=8, lr=1e-3, clip_norm=1.0, ema_decay=0.9, loss="neighbours", repeats=2,
    augmentation=Augmentation("resized", 0.5, 0.5),
)  # fmt: skip
GROUPS = {"round": ("circle", "ring", "heart", "crescent"),
          "angular": ("triangle", "square", "bar", "star", "plus", "arrow")}  # fmt: skip
WORKERS = pytest.mark.parametrize(("threads", "processes"), [(1, False), (2, can_fork()), (3, False), (3, can_fork())])


def small(name="grafit", **changes):
    return SMALL_GRAFITS[name](**{"num_classes": 2, "drop_path_rate": 0.3, **changes})


def loaders(count=44, recipe=RECIPE):
    train, val = (InMemory(Grouped(Shapes(n, 16, seed), GROUPS)) for n, seed in ((count, 0), (20, 1)))
    transform = training(recipe.augmentation, 16)
    views = {"transform": transform, "repeats": recipe.repeats, "numbered": True}
    return Loader(train, recipe.batch_size, True, threads=0, **views), Loader(val, 8, threads=0)


def batches(count=3):
    found = loaders()[0].epoch(0)
    return [next(found) for _ in range(count)]


def fitted(threads=1, processes=False, name="grafit", **options):
    trainer = Trainer(small(name), RECIPE, None, threads, 2, processes=processes)
    reports = trainer.fit(*loaders(), **options)
    return trainer, [(report.loss, report.scores, report.ema_scores) for report in reports]


@pytest.fixture(scope="module")
def whole():
    """A training that nothing interrupted."""
    trainer, reports = fitted()
    return state(trainer), reports


# ---- bits


@pytest.mark.parametrize("name", SMALL_GRAFITS)
def test_the_same_bits_on_any_number_of_workers(name):
    results = [fitted(*workers, name) for workers in ((1, False), (3, False), (2, can_fork()))]
    for trainer, reports in results[1:]:
        assert reports == results[0][1]
        assert_same(state(trainer), state(results[0][0]))


def test_the_memory_fills_with_embeddings_of_the_training_images(whole):
    arrays, _ = whole
    labels, memory = arrays["model/memory_labels"], arrays["model/memory"]
    dataset = loaders()[0].dataset.dataset
    seen = labels >= 0
    assert 15 < seen.sum() < 44 and len(memory) == 44
    assert all(labels[i] == dataset.label(i) for i in np.flatnonzero(seen))
    np.testing.assert_allclose(np.linalg.norm(memory[seen], axis=1), 1, rtol=1e-5)
    assert not memory[~seen].any() and not any("memory" in name for name in arrays if name.startswith("ema/"))


@WORKERS
def test_a_checkpoint_continues_to_the_bit(whole, threads, processes, tmp_path):
    """... in the middle of the second epoch."""
    path, trainer = tmp_path / "c.safetensors", Trainer(small(seed=0), RECIPE, None, threads, 2, processes=processes)

    def after_batch(_):
        if trainer.batches == 8:
            save_checkpoint(trainer, path)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        trainer.fit(*loaders(), after_batch=after_batch)
    model = small(seed=1)
    model.remember(44)
    again = Trainer(model, RECIPE, None, threads, 2, processes=processes)
    load_checkpoint(again, path)
    (report,) = again.fit(*loaders())
    assert (report.loss, report.scores, report.ema_scores) == whole[1][1]
    assert_same(state(again), whole[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_that_is_stopped_resumes_to_the_bit(threads, tmp_path, monkeypatch, capsys):
    smoke = [
        "--preset",
        "grafit_deit_mini",
        "--groups",
        "shapes",
        "--img-size",
        "16",
        "--smoke",
        "--threads",
        str(threads),
    ]
    command = ["train", "--device", "cpu", *smoke]
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    real, steps = Trainer.step, []

    def interrupted(self, *given):
        steps.append(1)
        if len(steps) == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        assert main([*command, "--out", str(tmp_path / "stopped")]) == 128 + signal.SIGTERM
    whole, stopped = (tmp_path / name / "shapes-grafit_deit_mini-1" for name in ("whole", "stopped"))
    assert main(["train", "--device", "cpu", "--resume", str(stopped)]) == 0
    assert_same_run(whole, stopped)
    assert minicait.load_model(whole / "weights/best.safetensors")[1].class_names == ["round", "angular"]


# ---- steps


def stepped(model=None, recipe=RECIPE, count=2, **options):
    model = model or small()
    model.remember(44)
    trainer = Trainer(model, recipe, threads=1, **options)
    for batch in batches(count):
        trainer.step(*batch)
    return trainer


def test_a_step_is_the_sum_of_both_losses():
    """The trainer's loss, written out from the outputs of the learner and of the averaged weights."""
    trainer = stepped(small(drop_path_rate=0.0), count=4)
    model, (images, targets) = trainer.model, batches(5)[4]
    with trainer.ema.applied():
        target = model.eval().embed(images).numpy().astype(np.float64).reshape(-1, 2, 8)
    outputs = model.train().outputs(images)
    q = normalised(outputs.predicted.numpy().astype(np.float64)).numpy().reshape(-1, 2, 8)
    inst = -((q[:, 0] * target[:, 1]).sum(-1) + (q[:, 1] * target[:, 0]).sum(-1)).mean() / 2
    labels, knn = model.memory_labels.numpy(), []
    for row, sample, label in zip(
        outputs.logits.numpy()[::2], targets["samples"][::2], targets["labels"][::2], strict=True
    ):
        others = (labels >= 0) & (np.arange(44) != sample)
        p = np.exp(row.astype(np.float64)) * others
        same = (p * (labels == label)).sum() / p.sum()
        knn.append(-np.log(same) if same else 0.0)
    assert max(knn) > 0
    assert trainer.step(images, targets) == pytest.approx(np.mean(knn) + inst, rel=1e-5)


def test_snca_needs_no_views_and_no_average():
    recipe = replace(RECIPE, instance_weight=0.0, repeats=1, ema_decay=None)
    model = small()
    before = model.predictor.fc1.weight.numpy().copy()
    trainer = stepped(model, recipe)
    assert trainer.targets.target_network is None and trainer.ema is None
    weight = model.predictor.fc1.weight.numpy()
    np.testing.assert_allclose(weight, before * (1 - 1e-3 * 0.05) ** 2, rtol=1e-5)  # only weight decay


def test_it_learns_a_batch_by_heart():
    """Its images are neighbours of their class, and their views predict each other."""
    images, targets = batches(1)[0]
    trainer = Trainer(small(dim=24, drop_path_rate=0.0), replace(RECIPE, lr=5e-3), threads=1)
    trainer.model.remember(44)
    losses = [trainer.step(images, targets) for _ in range(80)]
    assert losses[-1] < -0.9 < 0.3 < max(losses)
    predicted = minicait.train.predict(trainer.model, images).argmax(1)
    assert (predicted == targets["labels"]).all()


def test_a_batch_that_is_not_finite_leaves_the_memory_alone():
    trainer = stepped()
    before = state(trainer)
    images, targets = batches(3)[2]
    with pytest.raises(NotFiniteError, match="an image is not finite"):
        trainer.step(spoiled(images), targets)
    assert_same(state(trainer), before)


def test_a_skipped_step_leaves_the_memory_alone():
    """Gradients overflow float16: the loss scale is halved, and the next step goes on."""
    trainer = stepped()
    trainer.scaler = LossScaler(enabled=True)
    trainer.objective = KeepingOverflow(trainer.objective, frozenset({2}))
    before = trainer.model.memory.numpy().copy()
    images, targets = batches(3)[2]
    trainer.step(images, targets)
    assert trainer.scaler.skipped == 1
    np.testing.assert_array_equal(trainer.model.memory.numpy(), before)
    trainer.step(images, targets)
    assert not np.array_equal(trainer.model.memory.numpy(), before)


class KeepingOverflow(Overflowing):
    keeps_features = True


def test_features_come_back_in_order():
    """... from all micro-batches, on any workers; only if the objective asks for them."""
    model, (images, targets) = small(drop_path_rate=0.0), batches(1)[0]
    model.remember(44)
    targets = model.targets(targets)
    want = model.train().outputs(images).features.numpy()
    for threads, processes in ((1, False), (2, can_fork())):
        gradients = Gradients(model, threads, 3, processes)
        gradients(Neighbours(2, 0.0), images, targets)
        np.testing.assert_allclose(gradients.features, want, rtol=1e-5, atol=1e-6)
        gradients.close()
    plain = Gradients(SMALL_MODELS["deit"](), 1)
    plain(minicait.train.objectives.CrossEntropy(), images, {"labels": targets["labels"]})
    assert plain.features is None


# ---- the target network


def test_targets_of_a_view_are_the_other_views():
    model = small()
    ema = EMA(model, 0.9)
    for parameter in model.parameters():
        parameter.data += np.float32(0.1)  # the learner is elsewhere
    images = np.random.default_rng(0).standard_normal((6, 3, 16, 16)).astype(np.float32)
    target = TargetNetwork(model, ema, 3, threads=2, micro_batch=2)
    own = model.eval().embed(images).numpy()
    with ema.applied():
        g = model.eval().embed(images).numpy()
    got = target(images, np.array([5, 5, 5, 2, 2, 2]))
    assert got.shape == (6, 2, 8) and np.abs(g - own).max() > 0.1
    for row, others in enumerate([(1, 2), (0, 2), (0, 1), (4, 5), (3, 5), (3, 4)]):
        np.testing.assert_allclose(got[row], g[list(others)], rtol=1e-5, atol=1e-6)
    for samples in ([5, 5, 2, 2, 2, 2], [5, 5, 5, 2, 2, 3], [1, 1, 1, 2, 2]):
        with pytest.raises(ValueError, match="the 3 views of an image must stand side by side in a batch"):
            target(images[: len(samples)], np.array(samples))


# ---- what does not go together


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"repeats": 1}, "an instance_weight above 0 compares views of an image, and needs repeats of at least 2"),
        ({"ema_decay": None}, "instance_weight above 0 .* needs ema_decay"),
        ({"repeats": 3}, r"batch_size must be a multiple of 3, the views of an image \(repeats\), got 8"),
        ({"mixup": 0.2, "label_smoothing": 0.1}, "loss neighbours .* takes no mixup, label_smoothing"),
        ({"accumulate": 2}, "accumulate must be 1"),
        ({"instance_weight": -1.0}, "instance_weight must be at least 0"),
        ({"loss": "neighbors"}, "loss must be cross_entropy, bce or neighbours"),
        ({"loss": "cross_entropy"}, "Grafit needs loss=neighbours, got loss=cross_entropy"),
    ],
)
def test_settings_that_do_not_go_together(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trainer(small(), replace(RECIPE, **changes))


def test_other_models_do_not_learn_by_neighbours():
    with pytest.raises(ValueError, match="DeiT needs loss=cross_entropy or loss=bce, got loss=neighbours"):
        Trainer(SMALL_MODELS["deit"](), RECIPE)


def test_a_loader_that_does_not_number_its_images():
    train, val = loaders()
    train.numbered = False
    with pytest.raises(ValueError, match=r"targets must have samples; Loader\(numbered=True\)"):
        Trainer(small(), RECIPE, threads=1).fit(train, val)


def test_a_custom_objective_may_train_a_grafit():
    class OfFeatures:
        is_mean = True

        def __call__(self, outputs, targets):
            return (outputs.features * outputs.features).mean()

    trainer = Trainer(small(), Recipe(), threads=1, objective=OfFeatures())
    trainer.model.remember(44)
    assert trainer.step(*batches(1)[0]) == pytest.approx(1 / 8, rel=1e-5)


def test_a_memory_has_no_average():
    class Net(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter(np.ones(2, np.float32))
            self.mean, self.memory = nn.Buffer(np.ones(2, np.float32)), nn.Memory(np.ones(2, np.float32))

    model = Net()
    ema = EMA(model, 0.5)
    model.memory.data[...] = 3
    with ema.applied():
        assert list(ema.buffers) == ["mean"] and (model.memory.data == 3).all()


def test_the_recipe():
    recipe = RECIPES["small-grafit"]
    trainer = Trainer(Grafit(2, 16, 4, 12, 1, trunk="deit_mini_32"), recipe, threads=1)
    assert (
        trainer.objective == Neighbours(recipe.repeats, 1.0) and trainer.targets.target_network.views == recipe.repeats
    )


def test_the_target_network_follows_at_its_decay_from_the_first_step_on():
    trainer = Trainer(small(), RECIPE, threads=1)
    trainer.model.remember(44)
    before = {name: p.numpy().copy() for name, p in trainer.model.named_parameters()}
    trainer.step(*batches(1)[0])
    for name, p in trainer.model.named_parameters():
        want = RECIPE.ema_decay * before[name] + (1 - RECIPE.ema_decay) * p.numpy()
        np.testing.assert_allclose(trainer.ema.average[name], want, rtol=1e-5, atol=1e-7, err_msg=name)
