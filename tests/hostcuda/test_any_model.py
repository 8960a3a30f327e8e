"""Models that this package does not know, trained by the real CuPy: a plain Module, a Model, batch statistics."""

import numpy as np
import pytest

from minicait import nn
from minicait.train import Recipe, Trainer, evaluate, predict
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from tests import hostcuda
from tests.train.coupled import Centred, Net
from tests.train.helpers import assert_same, some_batches
from tests.train.test_any_model import Means, Perceptron

pytestmark = pytest.mark.hostcuda
RECIPE = Recipe(lr=3e-3, clip_norm=1.0, ema_decay=0.9)
MODELS = pytest.mark.parametrize("make", [Means, Perceptron, lambda seed=0: Net(nn.BatchNorm(12), seed=seed)],
                                 ids=["module", "model", "batch norm"])  # fmt: skip


@MODELS
def test_losses_and_predictions_are_those_of_the_cpu(make):
    images, labels = some_batches()[0]
    results = []
    for device in ("cpu", "cuda"):
        trainer = Trainer(make(), RECIPE, device)
        losses = [trainer.step(images, labels) for _ in range(4)]
        with trainer.ema.applied():
            averaged = predict(trainer.model, images)
        scores = evaluate(trainer.model, [(images, labels)])
        results.append((losses, [*predict(trainer.model, images).flat, *averaged.flat, scores.loss]))
        assert predict(trainer.model, images[:1]).shape == (1, 10)
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-3, atol=1e-3)  # Adam amplifies rounding


@MODELS
def test_a_checkpoint_continues_to_the_bit(make, tmp_path):
    first, second = Trainer(make(), RECIPE, "cuda"), Trainer(make(seed=1), RECIPE, "cuda")
    batches = some_batches(3)
    first.step(*batches[0])
    save_checkpoint(first, tmp_path / "c.safetensors")
    load_checkpoint(second, tmp_path / "c.safetensors")
    here = Trainer(make(seed=2), RECIPE)
    load_checkpoint(here, tmp_path / "c.safetensors")  # a CPU takes it, too
    assert_same(here.model.state_dict(), first.model.state_dict())
    assert [first.step(*b) for b in batches] == [second.step(*b) for b in batches]
    assert_same(on_the_host(first), on_the_host(second))


def on_the_host(trainer):
    trainer.model.to("cpu")
    flat = (trainer.optimiser.mean, trainer.optimiser.square, trainer.ema.average)
    arrays = {str(i): part.array.get() for i, part in enumerate(flat)}
    return arrays | {name: value.get() for name, value in trainer.ema.buffers.items()} | trainer.model.state_dict()


def test_coupled_samples_there():
    """A batch that stays whole may couple its samples; one that is cut may not."""
    images, labels = some_batches()[0]
    assert np.isfinite(Trainer(Net(Centred()), RECIPE, "cuda").step(images, labels))
    for part in (nn.BatchNorm(12), Centred()):
        named = rf"{type(part).__name__} \(stages\.1\) couples the samples of a batch"
        with pytest.raises(ValueError, match=named):
            Trainer(Net(part), RECIPE, "cuda", micro_batch=4).step(images, labels)


def test_in_pieces():
    images, labels = some_batches()[0]
    whole, cut = (Trainer(Means(), RECIPE, "cuda", micro_batch=size) for size in (None, 3))
    assert [whole.step(images, labels) for _ in range(3)] == pytest.approx([cut.step(images, labels) for _ in range(3)])
    with hostcuda.counting() as count:
        cut.step(images, labels)
    assert count.copies_to_host == 1  # the look for coupled samples was at the first step
