"""Batch statistics that are declared: the batch stays whole, and running statistics are state like any other."""

import copy
import os

import numpy as np
import pytest

from autograd import ops
from autograd.backend import device_of
from minicait import nn
from minicait.optim import EMA
from minicait.train import NotFiniteError, Recipe, Trainer, evaluate, predict, value_and_grad
from minicait.train.checkpoint import load_checkpoint, save_checkpoint
from minicait.train.gradients import Gradients
from minicait.train.not_finite import first_not_finite
from minicait.train.objectives import CrossEntropy
from minicait.train.workers import can_fork
from tests import stand_in_cupy
from tests.train.coupled import Net
from tests.train.helpers import assert_same, loaders, some_batches, state

RECIPE = Recipe(epochs=2, batch_size=8, lr=1e-3, ema_decay=0.9, clip_norm=1.0, accumulate=2)


def normed(seed=0):
    return Net(nn.BatchNorm(12), seed=seed)


def buffers(model):
    return {name: buffer.numpy().copy() for name, buffer in model.named_buffers()}


def test_a_step_is_that_of_the_whole_batch_on_any_number_of_threads():
    images, labels = some_batches()[0]
    plain = normed()
    want = ops.cross_entropy(plain(images), labels)
    want.backward()
    running = plain.stages[1].running_mean.numpy().copy()
    assert running.any()
    for options in ({"threads": 1}, {"threads": 2}, {"threads": 5}, {"micro_batch": 8}, {"micro_batch": 100}):
        model = normed()
        loss, gradients = value_and_grad(model, ops.cross_entropy, images, labels, **options)
        assert loss == want.item()
        for name, p in plain.named_parameters():
            np.testing.assert_allclose(gradients[name], p.grad.numpy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(model.stages[1].running_mean.numpy(), running)
        assert model.stages[1].num_batches_tracked.item() == 1  # once, and not once for every micro-batch


def test_the_same_bits_on_threads_and_processes():
    results = []
    for threads, processes in ((1, False), (3, False), (3, True)):
        trainer = Trainer(normed(), RECIPE, threads=threads, processes=processes)
        epochs = trainer.fit(*loaders())
        results.append((epochs, state(trainer)))
    for epochs, arrays in results[1:]:
        assert epochs == results[0][0]
        assert_same(arrays, results[0][1])
    assert results[0][1]["model/stages.1.num_batches_tracked"] == 10


def test_a_smaller_micro_batch_is_refused_by_name():
    images, labels = some_batches()[0]
    sentence = r"BatchNorm \(stages\.1\) couples the samples of a batch, so a batch of 8 cannot be cut"
    with pytest.raises(ValueError, match=f"{sentence} into micro-batches of 4"):
        value_and_grad(normed(), ops.cross_entropy, images, labels, micro_batch=4)
    with pytest.raises(ValueError, match=f"{sentence} into micro-batches of 1"):
        Trainer(normed(), micro_batch=1).step(images, labels)


def test_evaluation_uses_running_statistics_and_may_be_cut():
    trainer = Trainer(normed(), Recipe(lr=1e-2))
    for batch in some_batches(5):
        trainer.step(*batch)
    model, (images, labels) = trainer.model, some_batches()[0]
    before = buffers(model)
    want = predict(model, images, micro_batch=8)
    for micro_batch in (1, 3):
        np.testing.assert_allclose(predict(model, images, 2, micro_batch), want, rtol=1e-5, atol=1e-6)
    assert evaluate(model, [(images, labels)], micro_batch=1)[:2] == evaluate(model, [(images, labels)])[:2]
    value_and_grad(model.eval(), ops.cross_entropy, images, labels, micro_batch=2)  # nor are they coupled by gradients
    assert_same(buffers(model), before)
    assert np.abs(model.train()(images).numpy() - want).max() > 1e-3  # training mode has the batch's own statistics


def test_buffers_are_state():
    trainer = Trainer(normed(), RECIPE)
    for batch in some_batches(4):
        trainer.step(*batch)
    model, other = trainer.model, normed(seed=1)
    assert [name for name, _ in model.named_buffers()] == [
        f"stages.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    ]
    assert not [name for name, _ in model.named_parameters() if "running" in name]
    other.load_state_dict(model.state_dict())
    assert_same(other.state_dict(), model.state_dict())
    assert_same(buffers(copy.deepcopy(model)), buffers(model))
    with pytest.raises(ValueError, match=r"missing: stages\.1\.running_mean"):
        other.load_state_dict({name: p.numpy() for name, p in model.named_parameters()})
    wide = copy.deepcopy(model).astype("float64")
    assert wide.stages[1].running_var.dtype == np.float64 and wide.stages[1].num_batches_tracked.dtype == np.int64


def test_buffers_move_with_the_model(monkeypatch):
    model = normed()
    with stand_in_cupy.installed(monkeypatch):
        assert {tensor.device for _, tensor in model.to("cuda").named_tensors()} == {"cuda:0"}
        ema = EMA(model, 0.5)
        ema.update()
        assert ema.buffers.keys() == buffers(model).keys() and {device_of(a) for a in ema.buffers.values()} == {
            "cuda:0"
        }
        model.to("cpu")
    assert_same(buffers(model), buffers(normed()))


def test_the_average_of_the_weights_has_its_own_statistics():
    trainer = Trainer(normed(), RECIPE)
    want, count = buffers(trainer.model), 0
    for batch in some_batches(4):
        trainer.step(*batch)
        if trainer.optimiser.steps > count:
            count += 1
            decay = min(0.9, (1 + count) / (10 + count))
            for name, value in buffers(trainer.model).items():
                want[name] = decay * want[name] + (1 - decay) * value if value.dtype == np.float32 else value
    own = buffers(trainer.model)
    with trainer.ema.applied():
        for name, value in buffers(trainer.model).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-7)
    assert_same(buffers(trainer.model), own)
    assert np.abs(want["stages.1.running_mean"] - own["stages.1.running_mean"]).max() > 1e-4


@pytest.mark.parametrize("stop_after", [3, 5])
def test_a_checkpoint_continues_to_the_bit(tmp_path, stop_after):
    whole, second = Trainer(normed(), RECIPE), Trainer(normed(seed=1), RECIPE)

    def keep(loss):
        if whole.batches == stop_after:
            save_checkpoint(whole, tmp_path / "c.safetensors")

    want = whole.fit(*loaders(), after_batch=keep)
    load_checkpoint(second, tmp_path / "c.safetensors")
    got = second.fit(*loaders())
    assert got == want[-len(got) :]
    assert_same(state(second), state(whole))


@pytest.mark.skipif(not can_fork(), reason="processes cannot be forked on this system")
def test_worker_processes_see_buffers():
    """In evaluation mode, where a batch is cut, and the statistics may have changed since the workers were forked."""
    images, labels = some_batches()[0]
    model = normed().eval()
    gradients = [Gradients(model, 2, 2, processes) for processes in (True, False)]
    for shift in (0.0, 1.0, 2.0):
        model.stages[1].running_mean.data[...] = shift
        if shift == 2:
            model.stages[1].running_var.data = model.stages[1].running_var.data * 2  # another array in its place
        losses, flats = zip(*(g(CrossEntropy(), images, {"labels": labels}) for g in gradients), strict=True)
        assert float(losses[0]) == float(losses[1]) and flats[0].array.tobytes() == flats[1].array.tobytes()
    assert gradients[0].processes is not None
    gradients[0].close()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_batch_that_is_not_finite_leaves_no_trace_in_buffers(precision):
    images, labels = some_batches()[0]
    broken = images.copy()
    broken[0] = np.nan
    trainer = Trainer(normed(), RECIPE.changed(accumulate=1, precision=precision))
    with np.errstate(all="ignore"):
        trainer.step(images, labels)
        before = buffers(trainer.model)
        if precision == "fp32":
            with pytest.raises(NotFiniteError, match="an image is not finite"):
                trainer.step(broken, labels)
        else:
            assert np.isnan(trainer.step(broken, labels)) and trainer.scaler.skipped >= 1
    assert_same(buffers(trainer.model), before)
    trainer.model.stages[1].running_var.data[0] = np.inf
    assert first_not_finite(trainer) == "stages.1.running_var"


@pytest.mark.skipif(not can_fork(), reason="processes cannot be forked on this system")
def test_after_closing_nothing_is_shared_with_a_process_that_is_forked_later():
    model, (images, labels) = normed().eval(), some_batches()[0]
    gradients = Gradients(model, 2, 2, processes=True)
    gradients(CrossEntropy(), images, {"labels": labels})
    gradients.close()
    before = {name: value.copy() for name, value in model.state_dict().items()}
    if (child := os.fork()) == 0:
        for _, tensor in model.named_tensors():
            tensor.data[...] = 7
        os._exit(0)
    os.waitpid(child, 0)
    assert_same(model.state_dict(), before)
