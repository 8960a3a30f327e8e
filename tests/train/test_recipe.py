"""Recipes: every part of one does its work."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from autograd import ops
from autograd.random import Stream
from minicait.data.mixing import mix, one_hot
from minicait.optim import AdamW, learning_rate
from minicait.schema import from_json
from minicait.train import RECIPES, Recipe, Trainer, evaluate, recipe, value_and_grad
from tests.train.helpers import FULL, ROUNDING, loaders, small


def by_hand(model, optimiser, images, targets, clip=None):
    """One step of AdamW, written here again."""
    loss, gradients = value_and_grad(model, ops.cross_entropy, images, targets)
    if clip is not None:
        norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
        gradients = {name: g * np.float32(min(1, clip / (norm + 1e-6))) for name, g in gradients.items()}
    optimiser.step(gradients)
    return loss


@pytest.mark.parametrize(
    ("how", "clip"),
    [
        (Recipe(label_smoothing=0.3), None),
        (Recipe(label_smoothing=0.3, clip_norm=0.01), 0.01),
        (Recipe(label_smoothing=0.3, mixup=0.8, cutmix=1.0), None),
        (Recipe(mixup=0.8), None),
    ],
    ids=["smoothing", "clipping", "mixing", "mixup"],
)
def test_every_part_of_a_recipe_does_its_work(how, clip):
    """The first batches of `fit`, against steps that are written out."""
    train, val = loaders()
    trainer, other = Trainer(small(), how.changed(batch_size=8), threads=1), small()
    optimiser, batches = AdamW(other, 5e-4, 0.05), train.epoch(0)

    class EnoughError(Exception): ...

    def follow(loss):
        number = trainer.batches - 1
        images, labels = next(batches)
        images, targets = mix(images, one_hot(labels, 10), how.mixup, how.cutmix, Stream(0, "mix", number))
        targets = targets * (1 - how.label_smoothing) + np.float32(how.label_smoothing / 10)
        assert loss == pytest.approx(
            by_hand(other, optimiser, images, targets, clip), rel=1e-6 if number == 0 else 1e-4
        )
        if number == 0:
            for name, value in trainer.model.state_dict().items():
                if not name.endswith(ROUNDING):
                    np.testing.assert_allclose(value, other.state_dict()[name], rtol=1e-5, atol=1e-7, err_msg=name)
        if number == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        trainer.fit(train, val, after_batch=follow)


def test_the_average_of_the_weights_is_what_is_evaluated():
    trainer = Trainer(small(), Recipe(epochs=1, batch_size=8, lr=1e-2, ema_decay=0.9), threads=1)
    train, val = loaders()
    averages = {name: p.data.copy() for name, p in trainer.model.named_parameters()}
    count = []

    def follow(loss):
        count.append(1)
        decay = min(0.9, (1 + len(count)) / (10 + len(count)))
        for name, p in trainer.model.named_parameters():
            averages[name] = decay * averages[name] + (1 - decay) * p.data

    (epoch,) = trainer.fit(train, val, after_batch=follow)
    averaged = small()
    averaged.load_state_dict(averages)
    want = evaluate(averaged, val)
    assert epoch.ema_scores.loss == pytest.approx(want.loss, rel=1e-4) and epoch.ema_scores.loss != epoch.scores.loss
    assert epoch.scores == evaluate(trainer.model, val)


def test_the_rate_of_every_step():
    rates, trainer = [], Trainer(small(), FULL.changed(accumulate=1), threads=1)
    trainer.fit(*loaders(), after_batch=lambda loss: rates.append(trainer.optimiser.lr))
    want = [learning_rate(step, 15, 2, 1e-3, 1e-6, 1e-5) for step in range(15)]
    assert rates == want  # warm-up for half an epoch, which is 2 of 5 steps
    short = Trainer(small(), FULL.changed(epochs=1, warmup_epochs=1, accumulate=1), threads=1)
    short.fit(*loaders())
    assert short.optimiser.lr < 1e-3  # warm-up took a fifth of the run, not all of it


def test_recipes():
    assert RECIPES["cait"].peak_lr == pytest.approx(1e-3) and RECIPES["cait"].epochs == 400
    assert RECIPES["finetune"].constant_lr and RECIPES["finetune"].lr == 5e-6
    assert recipe("small").changed(lr=None, epochs=3) == Recipe(**{**vars(RECIPES["small"]), "epochs": 3})
    assert from_json(Recipe, json.loads(json.dumps(asdict(RECIPES["imagenette"])))) == RECIPES["imagenette"]
    with pytest.raises(ValueError, match="unknown recipe 'smal': did you mean small"):
        recipe("smal")
    wrongs = [{"epochs": 0}, {"batch_size": 0}, {"distillation": "medium"}, {"lr": float("nan")}, {"lr": float("inf")},
              {"label_smoothing": 7}, {"mixup": -1}, {"ema_decay": 2}, {"clip_norm": -1}, {"seed": "a"},
              {"loss": "hinge"}]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="recipe: "):
            Recipe(**wrong)
