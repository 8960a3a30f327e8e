"""Recipes: every part of one does its work."""

import json
from dataclasses import asdict

import numpy as np
import pytest

import minicait
from autograd import ops
from autograd.random import Stream
from minicait.cli import main
from minicait.data import Augmentation, Shapes, training
from minicait.data.loader import Loader
from minicait.data.mixing import mix, one_hot
from minicait.optim import AdamW, Lamb, learning_rate
from minicait.schema import from_json
from minicait.train import RECIPES, Recipe, Trainer, evaluate, recipe, value_and_grad
from minicait.train.not_finite import first_not_finite
from minicait.train.recipe import main_settings, with_settings
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
              {"loss": "hinge"}, {"optimiser": "sgd"}, {"bce_threshold": 0.0},
              {"loss": "bce", "bce_threshold": 1.0}, {"loss": "bce", "bce_threshold": 0.0, "relabel": 0.5}]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="recipe: "):
            Recipe(**wrong)


@pytest.mark.parametrize("max_norm", [0.01, None])
def test_a_recipe_with_lamb(max_norm):
    """It clips by itself, once and exactly; otherwise a step is a step."""
    how = Recipe(optimiser="lamb", lr=3e-3, weight_decay=0.3, clip_norm=max_norm)
    trainer, other = Trainer(small(), how, threads=1), small()
    optimiser, (images, labels) = Lamb(other, 3e-3, 0.3, max_norm=max_norm), next(loaders()[0].epoch(0))
    for step in range(3):
        loss, gradients = value_and_grad(other, ops.cross_entropy, images, labels)
        optimiser.step(gradients)
        assert trainer.step(images, labels) == pytest.approx(loss, rel=1e-6 if step == 0 else 1e-4)
    assert type(trainer.optimiser) is Lamb and trainer.optimiser.max_norm == max_norm
    for name, value in trainer.model.state_dict().items():
        if not name.endswith(ROUNDING):
            np.testing.assert_allclose(value, other.state_dict()[name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_main_settings():
    plain = main_settings(Recipe())
    assert plain == {"epochs": 1, "batch_size": 128, "optimiser": "adamw", "lr": 5e-4, "weight_decay": 0.05}
    scaled = main_settings(Recipe(lr=1e-3, lr_for_batch=512, batch_size=256, augmentation=Augmentation(flip=0.5)))
    assert scaled == plain | {"batch_size": 256, "flip": 0.5}  # the rate is that of the peak
    assert main_settings(RECIPES["deit3-finetune"])["lr"] == 1e-5
    assert "min_lr" in main_settings(Recipe(constant_lr=False, min_lr=0.0))


def test_settings_without_effect():
    soft = with_settings(Recipe(distillation="hard"), ["distillation=soft", "temperature=2"])
    assert soft.temperature == 2
    without = {"temperature=2": "distillation=soft", "distillation_weight=0.1": "a teacher", "min_lr=0": "constant_lr",
               "instance_weight=0": "neighbours", "crop_scale=0.5": "crop=resized"}  # fmt: skip
    for setting, needed in without.items():
        with pytest.raises(ValueError, match=rf"setting {setting.partition('=')[0]} has no effect without .*{needed}"):
            with_settings(Recipe(), [setting])


def test_a_peak_below_the_least_rate():
    """The rate never rises after the peak, however small the peak is."""
    rates, trainer = [], Trainer(small(), FULL.changed(accumulate=1, lr=1e-7), threads=1)
    trainer.fit(*loaders(), after_batch=lambda loss: rates.append(trainer.optimiser.lr))
    assert max(rates) == 1e-7


# ---- the recipes of the papers

OF_FAMILY = {
    "cait": "cait_tiny_32", "deit": "deit_mini_32", "deit3": "deit3_mini_32", "deit3-finetune": "deit3_mini_32",
    "resmlp": "resmlp_mini_32", "patchconvnet": "patchconvnet_mini_32", "lvvit": "lvvit_mini_32",
    "small-deit3": "deit3_mini_32",
}  # fmt: skip


@pytest.mark.parametrize("name", OF_FAMILY)
def test_a_recipe_trains_its_own_family(name):
    """Three batches of an epoch, with its augmentation, mixing, objective and optimiser."""
    how = RECIPES[name].changed(epochs=1, batch_size=4)
    model = minicait.create_model(OF_FAMILY[name], num_classes=10)
    loader = Loader(Shapes(12, 32), 4, True, transform=training(how.augmentation, 32), repeats=how.repeats, threads=0)
    before, trainer = model.state_dict()["head.weight"].copy(), Trainer(model, how, threads=1)
    (epoch,) = trainer.fit(loader, Loader(Shapes(8, 32, seed=1), 8))
    assert np.isfinite(epoch.loss) and epoch.steps == 3 and first_not_finite(trainer) is None
    assert not np.array_equal(model.state_dict()["head.weight"], before)
    assert type(trainer.optimiser) is (Lamb if how.optimiser == "lamb" else AdamW)


def test_what_the_papers_say():
    """Rate at the peak, decay, epochs, batch; then what is special about each."""
    table = {
        "cait": (1e-3, 0.05, 400, 1024), "deit": (1e-3, 0.05, 300, 1024), "deit3": (3e-3, 0.02, 400, 2048),
        "deit3-finetune": (1e-5, 0.1, 20, 512), "resmlp": (5e-3, 0.2, 400, 2048),
        "patchconvnet": (3e-3, 0.01, 400, 2048), "lvvit": (1.6e-3, 0.05, 300, 1024),
    }  # fmt: skip
    for name, (lr, decay, epochs, batch) in table.items():
        r = RECIPES[name]
        assert r.peak_lr == pytest.approx(lr) and (r.weight_decay, r.epochs, r.batch_size) == (decay, epochs, batch)
        by_lamb = name in ("deit3", "resmlp", "patchconvnet")
        assert (r.optimiser, r.clip_norm) == (("lamb", 1.0) if by_lamb else ("adamw", None))
        assert r.warmup_epochs == 5 and not r.constant_lr
        assert (r.mixup, r.cutmix) == ((0, 0) if name == "lvvit" else (0.8, 1.0)) and r.mix_token == (name == "lvvit")
        assert r.repeats == (1 if name in ("deit3-finetune", "lvvit") else 3)
        assert r.label_smoothing == (0 if name == "deit3" else 0.1)
        assert r.augmentation.erasing == (0 if name in ("deit3", "deit3-finetune", "patchconvnet") else 0.25)
        assert r.ema_decay == {"cait": 0.99996, "deit": 0.99996, "lvvit": 0.99992}.get(name)
        assert r.augmentation.rand_augment == (0 if name == "deit3" else 9)
    deit3 = RECIPES["deit3"]
    assert deit3.augmentation == Augmentation("resized", 0.08, 0.5, colour_jitter=0.3, three_augment=True)
    assert (deit3.loss, deit3.bce_threshold) == ("bce", 0)
    for name, model in OF_FAMILY.items():
        if name in ("deit", "resmlp", "patchconvnet", "lvvit", "cait"):
            assert RECIPES[name].crop_ratio == minicait.create_model(model).config.crop_ratio


def test_settings_that_need_each_other_may_come_in_any_order():
    settings = ["three_augment=true", "bce_threshold=0", "loss=bce", "rand_augment=0", "label_smoothing=0"]
    for some in (settings, settings[::-1]):
        got = with_settings(RECIPES["cait"], some)
        assert (got.bce_threshold, got.loss, got.augmentation.three_augment) == (0, "bce", True)
    with pytest.raises(ValueError, match="three_augment replaces rand_augment"):
        with_settings(RECIPES["cait"], ["three_augment=true"])
    with pytest.raises(ValueError, match="bce_threshold needs loss=bce, got cross_entropy"):
        with_settings(RECIPES["cait"], ["bce_threshold=0"])
    with pytest.raises(ValueError, match="so label_smoothing must be 0"):
        with_settings(RECIPES["cait"], ["bce_threshold=0", "loss=bce"])


def test_the_plan_names_the_optimiser(tmp_path, capsys):
    options = ["--preset", "deit3_mini", "--img-size", "16", "--patch-size", "8", "--recipe", "small-deit3", "--smoke"]
    assert main(["train", "--device", "cpu", "--out", str(tmp_path), *options, "--set", "crop=simple"]) == 0
    out = capsys.readouterr().out
    assert "optimiser lamb" in out and "bce_threshold 0" in out and "crop simple" in out and "three_augment True" in out
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "args.json").read_text())["recipe"]["optimiser"] == "lamb"
    assert main(["train", "--out", str(tmp_path), "--recipe", "deit3", "--set", "rand_augment=9"]) == 2
    assert "three_augment replaces rand_augment; set one of them" in capsys.readouterr().err
