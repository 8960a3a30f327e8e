"""The gate: long gradients are shortened, what is not finite moves nothing, and a loss scale finds its height."""

import math

import numpy as np
import pytest

import minicait.train.trainer as trainer_module
from autograd import random
from autograd.backend import to_device
from minicait.data import Shapes
from minicait.data.loader import Loader
from minicait.models.cait import CaiT
from minicait.optim import EMA, AdamW, clip_gradients
from minicait.optim.loss_scaler import FIRST_SCALE, ROOM, Gate
from minicait.optim.parameters import zeros_like
from minicait.run.journal import Row
from minicait.train import NotFiniteError, Recipe, Trainer
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from tests import stand_in_cupy

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "layer_scale": 0.5}
PLAIN = Recipe(epochs=1, batch_size=8, lr=1e-3, clip_norm=1.0, ema_decay=0.99)
FULL = Recipe(
    epochs=2, batch_size=8, lr=1e-3, constant_lr=False, warmup_epochs=0.5, clip_norm=1.0, label_smoothing=0.1,
    mixup=0.8, cutmix=1.0, ema_decay=0.99, accumulate=2,
)  # fmt: skip


def loaders():
    return Loader(Shapes(44, 16), 8, training=True), Loader(Shapes(8, 16, seed=1), 8)


def some_batches(count=5):
    batches = loaders()[0].epoch(0)
    return [next(batches) for _ in range(count)]


def state(trainer):
    parts = {"mean": trainer.optimiser.mean, "square": trainer.optimiser.square, "ema": trainer.ema.average}
    parts["model"] = trainer.model.state_dict()
    return {f"{part}/{name}": np.array(a) for part, arrays in parts.items() for name, a in arrays.items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def broken(images):
    images = images.copy()
    images[3, 0, 0, 0] = np.nan
    return images


@pytest.fixture
def too_large(monkeypatch):
    """Batches, by their number from 0, whose gradients become infinite."""
    numbers, real = set(), trainer_module.loss_and_gradients

    def sometimes(*args, **options):
        loss, gradients = real(*args, **options)
        if random.current().step in numbers:
            gradients["norm.weight"][0] = np.inf
        return loss, gradients

    monkeypatch.setattr(trainer_module, "loss_and_gradients", sometimes)
    return numbers


def draw(model, seed, size=1.0):
    gradients = zeros_like({name: p.data for name, p in model.named_parameters()})
    gradients.whole[...] = size * np.random.default_rng(seed).standard_normal(gradients.whole.size)
    return gradients


@pytest.mark.parametrize("clip", [None, 1.0, 1e6])
@pytest.mark.parametrize("flat", [True, False], ids=["one array", "by name"])
def test_a_step_through_the_gate_is_one_by_hand(clip, flat):
    here, there = CaiT(**SMALL), CaiT(**SMALL)
    optimiser, ema = AdamW(here, 1e-2), EMA(here, 0.9)
    other, its_ema = AdamW(there, 1e-2), EMA(there, 0.9)
    gate = Gate(other, its_ema, clip)
    for batch in range(1, 4):
        gradients = draw(here, batch)
        given = gradients if flat else {name: g.copy() for name, g in gradients.items()}
        gate.judge(np.float32(batch), given, batch)
        other.step(given, 1, gate.pace, its_ema)
        clip_gradients(gradients, math.inf if clip is None else clip)
        optimiser.step(gradients)
        ema.update()
    assert gate.read() == [1, 2, 3] and other.steps == its_ema.steps == 3
    for name, p in here.named_parameters():
        np.testing.assert_allclose(there.state_dict()[name], p.numpy(), rtol=1e-5, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(its_ema.average[name], ema.average[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_gradients_that_float32_cannot_square_are_shortened():
    model = CaiT(**SMALL)
    optimiser = AdamW(model, 1e-2)
    gate = Gate(optimiser, None, 1.0)
    gate.judge(np.float32(1), draw(model, 0, 1e25), 1)
    optimiser.step(draw(model, 0, 1e25), 1, gate.pace)
    gate.read()
    assert gate.known.failed == 0 and all(np.isfinite(p.numpy()).all() for p in model.parameters())


def test_frozen_weights_and_their_average_stay():
    model = CaiT(**SMALL)
    for p in model.patch_embed.parameters():
        p.requires_grad = False
    trainer, before = Trainer(model, PLAIN), {name: value.copy() for name, value in model.state_dict().items()}
    trainer.step(*some_batches(1)[0])
    for arrays in (model.state_dict(), trainer.ema.average):
        moved = {name for name, value in arrays.items() if (value != before[name]).any()}
        assert "head.weight" in moved and not [name for name in moved if name.startswith("patch_embed.")]


def test_a_skipped_step_is_as_if_it_had_never_been():
    first, second = some_batches(2)
    trainer, other = (Trainer(CaiT(**SMALL), PLAIN, precision="fp16") for _ in range(2))
    for t in (trainer, other):
        t.step(*first)
    before = state(trainer)
    assert np.isnan(trainer.step(broken(first.images), first.labels))
    assert_same(state(trainer), before)
    known = trainer.gate.known
    assert known == (FIRST_SCALE / 2, 0, 0, 1, 1, 0) and trainer.optimiser.steps == trainer.ema.steps == 1
    assert trainer.batches == 2
    other.gate.restore(other.gate.known._replace(scale=known.scale))
    assert trainer.step(*second) == other.step(*second)
    assert_same(state(trainer), state(other))


def test_the_scale_grows_halves_and_recovers(too_large):
    trainer = Trainer(CaiT(**SMALL), PLAIN, precision="fp16")
    trainer.gate.rules = trainer.gate.rules._replace(interval=3, max_scale=2 * FIRST_SCALE)
    too_large |= {3, 4}
    scales = []
    for _ in range(12):
        trainer.step(*some_batches(1)[0])
        scales.append(trainer.gate.known.scale / FIRST_SCALE)
    assert scales == [1, 1, 2, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2, 2]
    assert trainer.gate.known.skipped == 2 and trainer.optimiser.steps == 10


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_the_scale_does_not_change_the_step(scale):
    batch = some_batches(1)[0]
    trainer, plain = (Trainer(CaiT(**SMALL), PLAIN, precision=precision) for precision in ("fp16", "fp32"))
    trainer.gate.restore(trainer.gate.known._replace(scale=scale))
    assert trainer.step(*batch) == pytest.approx(plain.step(*batch), rel=1e-2)
    for name, value in state(plain).items():
        if name.startswith("mean/"):
            np.testing.assert_allclose(state(trainer)[name], value, atol=2e-3 * max(1e-3, np.abs(value).max()))


def test_it_is_hopeless_when_no_scale_helps():
    images, labels = some_batches(1)[0]
    trainer = Trainer(CaiT(**SMALL), PLAIN, precision="fp16")
    before = state(trainer)
    for _ in range(16):
        trainer.step(broken(images), labels)
    with pytest.raises(NotFiniteError, match="stopped at batch 17: an image is not finite"):
        trainer.step(broken(images), labels)
    assert_same(state(trainer), before)
    trainer.step(images, labels)  # it can go on with another
    assert trainer.optimiser.steps == 1


@pytest.mark.parametrize("bad", [2, 3])
def test_a_bad_batch_spoils_the_whole_step_that_it_is_part_of(bad):
    trainer = Trainer(CaiT(**SMALL), PLAIN.changed(accumulate=2), precision="fp16")
    for number, (images, labels) in enumerate(some_batches()):
        before = state(trainer)
        trainer.step(broken(images) if number == bad else images, labels)
        if number == 3:
            assert_same(state(trainer), before)
    assert trainer.gate.known.steps == 1 and trainer.gate.known.skipped == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_failed_is_told_later_and_the_weights_are_those_from_before(too_large, accumulate):
    """As on a GPU, where nobody looks at every batch."""
    recipe = PLAIN.changed(accumulate=accumulate)
    trainer, want = Trainer(CaiT(**SMALL), recipe), Trainer(CaiT(**SMALL), recipe)
    batches = some_batches()
    for batch in batches[:2]:
        want.step(*batch)
    too_large.add(2)
    for batch in batches:
        trainer.queue(*batch)
    with pytest.raises(NotFiniteError, match="stopped at batch 3: its loss or its gradients are not finite"):
        trainer.settle()
    assert_same(state(trainer), state(want))
    assert trainer.batches == 2 and not trainer.waiting and trainer.optimiser.steps == 2 // accumulate
    too_large.clear()
    assert trainer.step(*batches[3]) == want.step(*batches[3])


def test_fit_finds_the_batch_that_failed(too_large, monkeypatch):
    monkeypatch.setattr(Trainer, "device", property(lambda self: "somewhere"))  # where fit does not look at every batch
    trainer, told = Trainer(CaiT(**SMALL), FULL.changed(accumulate=1), threads=1), []
    too_large.add(7)
    find = []
    real = trainer._mixed
    monkeypatch.setattr(trainer, "_mixed", lambda *args: find.append(real(*args)) or find[-1])
    with pytest.raises(NotFiniteError, match="stopped at batch 8: the sum of the gradients"):
        trainer.fit(*loaders(), after_batch=told.append)
    assert told == [None] * 10 and trainer.position.epoch == 1
    assert trainer.batches == 7 and trainer.position.batch == 2 and len(trainer.position.losses) == 2
    np.testing.assert_array_equal(find[-1][0], find[7][0])  # the very batch again
    np.testing.assert_array_equal(find[-1][1], find[7][1])


def test_losses_are_read_before_their_room_is_full(monkeypatch):
    monkeypatch.setattr(trainer_module, "ROOM", 3)
    trainer, other = Trainer(CaiT(**SMALL), PLAIN), Trainer(CaiT(**SMALL), PLAIN)
    batches = some_batches()
    for batch in batches:
        trainer.queue(*batch)
    trainer.settle()
    assert trainer.position.losses == [other.step(*batch) for batch in batches] and ROOM > 3


@pytest.mark.parametrize("stop_after", [3, 4, 6, 7])
def test_a_checkpoint_in_the_middle_of_it_goes_on_to_the_bit(tmp_path, too_large, stop_after):
    too_large |= {2, 5, 8}

    def trainer(seed=0):
        made = Trainer(CaiT(**SMALL, drop_path_rate=0.2, seed=seed), FULL, precision="fp16")
        made.gate.rules = made.gate.rules._replace(interval=2)
        return made

    class EnoughError(Exception): ...

    def stop(loss):
        if first.batches == stop_after:
            save_checkpoint(first, tmp_path / "c.safetensors")
            raise EnoughError

    whole, first, second = trainer(), trainer(), trainer(seed=9)
    want = whole.fit(*loaders())
    with pytest.raises(EnoughError):
        first.fit(*loaders(), after_batch=stop)
    load_checkpoint(second, tmp_path / "c.safetensors")
    got = second.fit(*loaders())
    assert got == want[-len(got) :] and second.gate.known == whole.gate.known
    assert_same(state(second), state(whole))
    assert (got[-1].steps, got[-1].skipped) == (2, 3) and got[-1].loss_scale < FIRST_SCALE
    assert math.isfinite(got[-1].loss)
    with pytest.raises(ValueError, match="is of another run: its recipe differs in precision"):
        load_checkpoint(Trainer(CaiT(**SMALL, drop_path_rate=0.2), FULL), tmp_path / "c.safetensors")


def test_precision_is_part_of_a_recipe():
    assert Trainer(CaiT(**SMALL)).recipe.precision == "fp32"
    assert Trainer(CaiT(**SMALL), PLAIN, precision="tf32").recipe == PLAIN.changed(precision="tf32")
    assert Trainer(CaiT(**SMALL), PLAIN.changed(precision="tf32")).recipe.precision == "tf32"
    with pytest.raises(ValueError, match="precision must be fp32, tf32 or fp16, got 'fp8'"):
        Trainer(CaiT(**SMALL), precision="fp8")


def test_skipped_steps_are_told():
    row = Row(1, 5, 1e-3, 2.0, 2.0, 0.5, 0.9, None, None, None, 10.0, 0.1, 7.0)
    assert "skipped" not in str(row)
    row.skipped, row.loss_scale = 2, 32768.0
    assert str(row).endswith("; 2 steps skipped so far, loss scale 32768")


def test_on_another_device(monkeypatch):
    results = []
    with stand_in_cupy.installed(monkeypatch):
        for device in ("cpu", "cuda"):
            model = CaiT(**SMALL).to(device)
            optimiser, ema = AdamW(model, 1e-2), EMA(model, 0.9)
            gate = Gate(optimiser, ema, 1.0, scaled=True)
            for batch, size in enumerate((1, np.inf, 1), 1):
                gradients = draw(CaiT(**SMALL), batch, size)
                if device != "cpu":
                    there = zeros_like({name: p.data for name, p in model.named_parameters()})
                    there.whole[...] = to_device(gradients.whole, device)
                    gradients = there
                gate.judge(gradients.whole[0], gradients, batch)
                optimiser.step(gradients, 1, gate.pace, ema)
            gate.read()
            results.append((gate.known, {name: p.numpy() for name, p in model.named_parameters()}))
    assert results[0][0] == results[1][0] == (FIRST_SCALE / 2, 1, 0, 2, 1, 0)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], value, rtol=1e-6, err_msg=name)
