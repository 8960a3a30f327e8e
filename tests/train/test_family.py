"""Every family trains: it overfits a batch, on any number of workers alike, and goes on from a checkpoint."""

import numpy as np
import pytest

from minicait.train import Recipe, Trainer, predict
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from minicait.train.workers import can_fork
from tests.models.small_models import SMALL_MODELS
from tests.train.helpers import assert_same, some_batches, state

FAMILY = pytest.mark.parametrize("name", SMALL_MODELS)
RECIPE = Recipe(lr=1e-3, clip_norm=1.0, ema_decay=0.9, label_smoothing=0.1)


@FAMILY
def test_it_learns_a_batch_by_heart(name):
    images, labels = some_batches()[0]
    trainer = Trainer(SMALL_MODELS[name](dim=24), Recipe(lr=5e-3, clip_norm=1.0), threads=1)
    losses = [trainer.step(images, labels) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    assert (predict(trainer.model, images).argmax(1) == labels).all()


@pytest.mark.parametrize("name", ["deit3", "resmlp", "patchconvnet"])
def test_it_learns_by_lamb_as_its_paper_has_it(name):
    """Weights grow by 2 % in a step at most, so it takes longer than by AdamW."""
    images, labels = some_batches()[0]
    trainer = Trainer(SMALL_MODELS[name](dim=24), Recipe(optimiser="lamb", lr=2e-2, clip_norm=1.0), threads=1)
    losses = [trainer.step(images, labels) for _ in range(60)]
    print(f"\n{name}: {losses[0]:.2f} to {losses[-1]:.2f}")
    assert losses[-1] < 0.5 * losses[0]


@FAMILY
@pytest.mark.parametrize("optimiser", ["adamw", "lamb"])
def test_the_same_bits_on_any_number_of_workers(name, optimiser):
    batches, results, recipe = some_batches(3), [], RECIPE.changed(optimiser=optimiser)
    for threads, processes in ((1, False), (3, False), (2, can_fork())):
        trainer = Trainer(SMALL_MODELS[name](drop_path_rate=0.3), recipe, None, threads, 2, processes=processes)
        losses = [trainer.step(*batch) for batch in batches]
        trainer.close()
        results.append((losses, state(trainer)))
    for losses, arrays in results[1:]:
        assert losses == results[0][0]
        assert_same(arrays, results[0][1])


@FAMILY
def test_a_checkpoint_continues_to_the_bit(name, tmp_path):
    first, second = (Trainer(SMALL_MODELS[name](drop_path_rate=0.3, seed=seed), RECIPE, threads=1) for seed in (0, 1))
    batches = some_batches(3)
    first.step(*batches[0])
    save_checkpoint(first, tmp_path / "c.safetensors")
    load_checkpoint(second, tmp_path / "c.safetensors")
    assert [first.step(*batch) for batch in batches] == [second.step(*batch) for batch in batches]
    assert_same(state(first), state(second))


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
@pytest.mark.parametrize(("name", "head"), [("deit-distilled", "head_dist"), ("lvvit", "aux_head")])
def test_every_head_learns_from_labels_where_there_is_no_teacher(name, head, loss):
    """Evaluation uses all of them."""
    images, labels = some_batches()[0]
    model = SMALL_MODELS[name]()
    before = dict(model.named_modules())[head].weight.numpy().copy()
    Trainer(model, Recipe(lr=1e-2, loss=loss), threads=1).step(images, labels)
    moved = np.abs(dict(model.named_modules())[head].weight.numpy() - before)
    assert np.median(moved) > 5e-3  # Adam's first step moves by lr whatever has a gradient


@pytest.mark.parametrize("distillation", ["hard", "soft"])
def test_the_second_head_learns_from_the_teacher(distillation):
    """The labels say one thing and the teacher another: each head learns what it is told."""
    images, labels = some_batches()[0]
    others = (labels + 1) % 10
    teacher = 10 * np.eye(10, dtype=np.float32)[others]
    recipe = Recipe(lr=5e-3, clip_norm=1.0, distillation=distillation, temperature=1.0)
    trainer = Trainer(SMALL_MODELS["deit-distilled"](dim=24), recipe, threads=1, teacher=lambda images: teacher)
    for _ in range(60):
        trainer.step(images, labels)
    outputs = trainer.model.train().outputs(images)
    assert (outputs.logits.numpy().argmax(1) == labels).all()
    assert (outputs.distilled.numpy().argmax(1) == others).all()
