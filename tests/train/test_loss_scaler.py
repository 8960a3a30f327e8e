"""Loss scaling: a step that overflows is skipped, the scale adapts, and what no scale can mend stops the training."""

import math

import numpy as np
import pytest

from minicait.optim import AdamW, LossScaler
from minicait.optim.loss_scaler import FIRST_SCALE, GROWTH_INTERVAL, MAX_SCALE
from minicait.run.journal import Row
from minicait.train import NotFiniteError, Recipe, Trainer
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from tests.train.helpers import FULL, PLAIN, assert_same, loaders, overflowing, small, some_batches, spoiled, state


def in_float16(recipe=PLAIN, **options):
    return Trainer(small(**options), recipe, precision="fp16")


# ---- by itself


def test_the_scale_halves_grows_and_keeps_its_bounds():
    scaler = LossScaler(enabled=True)
    assert scaler.scale == FIRST_SCALE and not scaler.exhausted
    assert not scaler.accepts(math.inf) and not scaler.accepts(math.nan)
    assert (scaler.scale, scaler.skipped, scaler.good) == (FIRST_SCALE / 4, 2, 0)
    for step in range(1, GROWTH_INTERVAL + 1):
        assert scaler.scale == FIRST_SCALE / 4 and scaler.good == step - 1
        assert scaler.accepts(1.0)
    assert (scaler.scale, scaler.good) == (FIRST_SCALE / 2, 0)
    scaler.growth_interval = 1
    for _ in range(40):
        assert scaler.accepts(0.0)
    assert scaler.scale == MAX_SCALE
    while not scaler.exhausted:
        scaler.accepts(math.nan)
    assert scaler.scale == 1 and not scaler.accepts(math.nan) and scaler.scale == 1


def test_an_overflow_begins_the_count_anew():
    scaler = LossScaler(enabled=True)
    scaler.growth_interval = 3
    verdicts = [scaler.accepts(norm) for norm in (1, 1, math.inf, 1, 1, 1)]
    assert verdicts == [True, True, False, True, True, True] and scaler.scale == FIRST_SCALE


def test_without_scaling_the_scale_is_one_for_ever():
    scaler = LossScaler(enabled=False)
    scaler.growth_interval = 1
    assert all(scaler.accepts(1.0) for _ in range(5)) and scaler.scale == 1 and scaler.exhausted


def test_gradients_are_divided_by_the_scale_without_rounding():
    scaler, gradients = LossScaler(enabled=True), AdamW(small(), 0.1).parameters.zeros()
    values = np.random.default_rng(0).standard_normal(gradients.array.size).astype(np.float32)
    gradients.array[...] = values * np.float32(FIRST_SCALE)
    scaler.unscale(gradients)
    np.testing.assert_array_equal(gradients.array, values)


def test_its_state_can_be_saved():
    scaler, other = LossScaler(enabled=True), LossScaler(enabled=True)
    for norm in (1.0, math.inf, 1.0, 1.0):
        scaler.accepts(norm)
    other.load_state_dict(scaler.state_dict())
    assert (other.scale, other.good, other.skipped) == (FIRST_SCALE / 2, 2, 1)


# ---- in a trainer


def test_a_skipped_step_is_as_if_it_had_never_been():
    first, second = some_batches(2)
    trainer, other = in_float16(), in_float16()
    for t in (trainer, other):
        t.step(*first)
    before = state(trainer)
    assert np.isnan(trainer.step(spoiled(first.images), first.labels))
    assert_same(state(trainer), before)
    assert (trainer.scaler.scale, trainer.scaler.skipped) == (FIRST_SCALE / 2, 1)
    assert trainer.optimiser.steps == trainer.ema.steps == 1 and trainer.batches == 2
    other.scaler.scale = FIRST_SCALE / 2
    assert trainer.step(*second) == other.step(*second)
    assert_same(state(trainer), state(other))


def test_the_scale_grows_halves_and_recovers():
    trainer = overflowing(in_float16(), 3, 4)
    trainer.scaler.growth_interval, trainer.scaler.max_scale = 3, 2 * FIRST_SCALE
    batch, scales = some_batches()[0], []
    for _ in range(12):
        assert math.isfinite(trainer.step(*batch))
        scales.append(trainer.scaler.scale / FIRST_SCALE)
    assert scales == [1, 1, 2, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2, 2]
    assert trainer.scaler.skipped == 2 and trainer.optimiser.steps == 10


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
def test_the_scale_does_not_change_the_step(scale):
    batch = some_batches()[0]
    recipe = Recipe(lr=1e-3)  # without clipping, which would hide a factor
    trainer, plain = in_float16(recipe), Trainer(small(), recipe)
    trainer.scaler.scale = scale
    assert trainer.step(*batch) == pytest.approx(plain.step(*batch), rel=1e-2)
    got = state(trainer)
    for name, value in state(plain).items():
        if name.startswith("mean/"):
            np.testing.assert_allclose(got[name], value, atol=2e-3 * max(1e-3, np.abs(value).max()))


def test_the_schedule_follows_the_data_not_the_steps():
    recipe = FULL.changed(epochs=1, accumulate=1)
    trainers, losses = (in_float16(recipe), overflowing(in_float16(recipe), 1, 2, in_loss=True)), []
    (whole,), (skipping,) = (trainer.fit(*loaders(threads=0), losses.append) for trainer in trainers)
    assert (whole.steps, skipping.steps, skipping.skipped) == (5, 3, 2) and skipping.lr == whole.lr
    assert np.isinf(losses[6:8]).all() and skipping.loss == np.mean([losses[5], *losses[8:]])  # the finite ones


def test_training_stops_when_no_scale_helps():
    images, labels = some_batches()[0]
    trainer = in_float16()
    before = state(trainer)
    for _ in range(16):
        trainer.step(spoiled(images), labels)
    with pytest.raises(NotFiniteError, match="stopped at batch 17: an image is not finite"):
        trainer.step(spoiled(images), labels)
    assert_same(state(trainer), before)
    trainer.step(images, labels)  # it can go on with another
    assert trainer.optimiser.steps == 1


@pytest.mark.parametrize("bad", [2, 3])
@pytest.mark.parametrize("in_loss", [False, True], ids=["gradients", "loss"])
def test_one_bad_batch_spoils_the_whole_update(bad, in_loss):
    trainer = overflowing(in_float16(PLAIN.changed(accumulate=2)), bad, in_loss=in_loss)
    for number, batch in enumerate(some_batches(5)):
        before = state(trainer)
        trainer.step(*batch)
        if number == 3:
            assert_same(state(trainer), {k: v for k, v in before.items() if not k.startswith("accumulated/")})
    assert (trainer.optimiser.steps, trainer.scaler.skipped, trainer.scaler.scale) == (1, 1, FIRST_SCALE / 2)


def test_a_checkpoint_among_skipped_steps_continues_to_the_bit(tmp_path):
    """Also in the middle of an accumulation, of which one batch overflowed."""
    recipe = FULL.changed(epochs=2)

    def trainer(seed=0):
        made = overflowing(in_float16(recipe, drop_path_rate=0.2, seed=seed), 2, 5, 8)
        made.scaler.growth_interval = 2
        return made

    whole = trainer()
    want = whole.fit(*loaders(threads=0), lambda _: save_checkpoint(whole, tmp_path / f"{whole.batches}.safetensors"))
    assert (want[-1].steps, want[-1].skipped) == (2, 3) and want[-1].loss_scale < FIRST_SCALE
    assert math.isfinite(want[-1].loss)
    for batches in (3, 4, 6, 7):
        other = trainer(seed=9)
        load_checkpoint(other, tmp_path / f"{batches}.safetensors")
        got = other.fit(*loaders(threads=0))
        assert got == want[-len(got) :] and other.scaler.state_dict() == whole.scaler.state_dict()
        assert_same(state(other), state(whole))
    with pytest.raises(ValueError, match="is of another run: its recipe differs in precision"):
        load_checkpoint(Trainer(small(drop_path_rate=0.2), recipe), tmp_path / "3.safetensors")


def test_skipped_steps_are_reported():
    row = Row(1, 5, 1e-3, 2.0, 2.0, 0.5, 0.9, None, None, None, 10.0, 0.1, 7.0)
    assert "skipped" not in str(row)
    row.skipped, row.loss_scale = 2, 32768.0
    assert str(row).endswith("; 2 steps skipped so far, loss scale 32768")


def test_precision_is_part_of_a_recipe():
    assert Trainer(small()).recipe.precision == "fp32"
    assert Trainer(small(), PLAIN, precision="tf32").recipe == PLAIN.changed(precision="tf32")
    assert Trainer(small(), PLAIN.changed(precision="tf32")).recipe.precision == "tf32"
    with pytest.raises(ValueError, match="precision must be fp32, tf32 or fp16, got 'fp8'"):
        Trainer(small(), precision="fp8")
