"""The trainer: a step, and the epochs of `fit`."""

import numpy as np
import pytest

from autograd import Tensor, ops
from minicait.data.mixing import one_hot
from minicait.optim import AdamW
from minicait.train import Recipe, Trainer, predict, value_and_grad
from tests.train.helpers import FULL, PLAIN, ROUNDING, assert_same, loaders, small, some_batches, state


def test_without_a_recipe_a_step_is_plain_adamw():
    model, other = small(), small()
    images, labels = some_batches()[0]
    trainer, optimiser = Trainer(model), AdamW(other, 5e-4, 0.05)
    for _ in range(3):
        loss = trainer.step(images, labels)
        want, gradients = value_and_grad(other, ops.cross_entropy, images, labels)
        optimiser.step(gradients)
        assert isinstance(loss, float) and loss == want
    assert_same(model.state_dict(), other.state_dict())
    assert trainer.ema is None and model.training and trainer.device == "cpu"


def test_the_order_of_its_arguments_is_a_contract():
    teacher = small(seed=5).eval()
    trainer = Trainer(small(), Recipe(distillation="hard"), "cpu", 1, 4, teacher, "tf32", False)
    assert (trainer.threads, trainer.micro_batch, trainer.recipe.precision) == (1, 4, "tf32")
    assert trainer.teacher is teacher and trainer.device == "cpu"


def test_soft_labels_and_class_indices_are_the_same():
    images, labels = some_batches()[0]
    losses = [Trainer(small(), threads=1).step(images, t) for t in (labels, one_hot(labels, 10))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_tensors_are_as_good_as_arrays():
    images, labels = some_batches()[0]
    assert (
        len({Trainer(small(), threads=1).step(*pair) for pair in ((images, labels), (Tensor(images), Tensor(labels)))})
        == 1
    )


def test_bad_input():
    images, labels = some_batches()[0]
    with pytest.raises(IndexError, match=r"class indices must be in \[0, 9\], got -1 to"):
        Trainer(small(), Recipe(label_smoothing=0.1)).step(images, labels - labels.min() - 1)
    with pytest.raises(TypeError, match=r"train_loader must be a minicait\.data\.Loader"):
        Trainer(small()).fit([(images, labels)], [(images, labels)])
    with pytest.raises(ValueError, match="8 images need as many labels, at least one, got 3"):
        Trainer(small()).step(images, labels[:3])
    for options in ({"recipe": Recipe(distillation="hard")}, {"teacher": small()}):
        with pytest.raises(ValueError, match=r"needs a teacher|a teacher needs a recipe with"):
            Trainer(small(), **options)


def test_accumulated_batches_are_one_large_batch():
    images, labels = next(iter(loaders(16)[0]))
    whole, parts = Trainer(small(), threads=1), Trainer(small(), Recipe(accumulate=2), threads=1)
    whole.step(images, labels)
    parts.step(images[:8], labels[:8])
    assert_same(parts.model.state_dict(), small().state_dict())  # not yet
    parts.step(images[8:], labels[8:])
    for name, value in parts.model.state_dict().items():
        if not name.endswith(ROUNDING):
            np.testing.assert_allclose(value, whole.model.state_dict()[name], atol=2e-4, err_msg=name)
    for name, mean in whole.optimiser.mean.items():  # their gradients are averaged; Adam hides a factor
        np.testing.assert_allclose(parts.optimiser.mean[name], mean, rtol=1e-3, atol=1e-7, err_msg=name)
    assert parts.optimiser.steps == 1 and parts.batches == 2


def test_frozen_weights_and_their_average_stay():
    model = small()
    for p in model.patch_embed.parameters():
        p.requires_grad = False
    trainer, before = Trainer(model, PLAIN), {name: value.copy() for name, value in model.state_dict().items()}
    trainer.step(*some_batches()[0])
    for arrays in (model.state_dict(), trainer.ema.average):
        moved = {name for name, value in arrays.items() if (value != before[name]).any()}
        assert "head.weight" in moved and not [name for name in moved if name.startswith("patch_embed.")]


def test_weights_may_be_frozen_and_thawed_between_steps():
    """A frozen weight does not move along its momentum from before."""
    trainer, batch = Trainer(small(), PLAIN), some_batches()[0]
    trainer.step(*batch)
    head = trainer.model.head.weight
    for learned in (False, True):
        head.requires_grad = learned
        before = head.numpy().copy()
        trainer.step(*batch)
        assert np.array_equal(head.numpy(), before) != learned


def test_it_learns_a_batch_by_heart():
    trainer = Trainer(small(), Recipe(lr=3e-3), threads=1)
    images, labels = some_batches()[0]
    losses = [trainer.step(images, labels) for _ in range(150)]
    assert losses[-1] < 0.1 < losses[0]
    assert (predict(trainer.model, images).argmax(1) == labels).all()
    assert trainer.model.training


def test_the_same_bits_for_any_number_of_threads():
    results = []
    for threads in (1, 2, 5):
        trainer = Trainer(small(drop_path_rate=0.2), FULL, threads=threads, micro_batch=2)
        epochs = trainer.fit(*loaders())
        results.append((state(trainer), [e.loss for e in epochs], [e.scores for e in epochs]))
    for other in results[1:]:
        assert_same(other[0], results[0][0])
        assert other[1:] == results[0][1:]


def test_fit_reports_and_schedules():
    rates, losses, trainer = [], [], Trainer(small(), FULL)

    def after_batch(loss):
        rates.append(trainer.optimiser.lr)
        losses.append(loss)

    epochs = trainer.fit(*loaders(), after_batch)
    assert [e.number for e in epochs] == [1, 2, 3] and trainer.batches == 15 and trainer.optimiser.steps == 7
    assert epochs[-1].ema_scores is not None and 0 <= epochs[-1].scores.top1 <= epochs[-1].scores.top5 <= 1
    assert max(rates) <= 1e-3 and rates[-1] < rates[6]
    assert all(isinstance(loss, float) for loss in losses) and epochs[1].loss == float(np.mean(losses[5:10]))
