"""Checkpoints: a trainer continues from one to the bit, and one that does not fit changes nothing."""

import threading

import pytest

import minicait
from minicait.optim import flat_parameters
from minicait.train import Trainer
from minicait.train.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from tests.train.helpers import FULL, assert_same, loaders, small, some_batches, state

HEAD = b'"model/head.weight":{"dtype":"F32"'  # in the header of a checkpoint


def trainer(seed=0, recipe=FULL, **options):
    return Trainer(small(drop_path_rate=0.2, seed=seed), recipe, **options)


class EnoughError(Exception): ...


@pytest.fixture(scope="module", params=["adamw", "lamb"])
def whole(request):
    """A run that nothing interrupted: its trainer and its epochs."""
    made = trainer(recipe=FULL.changed(optimiser=request.param))
    return made, made.fit(*loaders())


@pytest.mark.parametrize("stop_after", [1, 5, 7, 10, 14])  # in accumulations and between them, and at ends of epochs
def test_a_run_that_was_stopped_continues_to_the_bit(tmp_path, stop_after, whole):
    first, second = trainer(recipe=whole[0].recipe), trainer(seed=9, recipe=whole[0].recipe)

    def stop(loss):
        if first.batches == stop_after:
            save_checkpoint(first, tmp_path / "c.safetensors", {"note": "é"})
            raise EnoughError

    with pytest.raises(EnoughError) as error:
        first.fit(*loaders(), after_batch=stop)
    assert error.tb is not None  # it holds the frames, and they must not hold the loader's threads
    assert not [t for t in threading.enumerate() if t.name.startswith("minicait")]
    assert first.gradients.processes is None  # nor keep processes
    assert load_checkpoint(second, tmp_path / "c.safetensors") == {"note": "é"}
    assert_same(state(second), state(first))
    got = second.fit(*loaders())
    assert_same(state(second), state(whole[0]))
    assert got == whole[1][-len(got) :]


def test_a_run_that_was_stopped_in_its_evaluation_evaluates_again(tmp_path, whole, monkeypatch):
    first, second = trainer(recipe=whole[0].recipe), trainer(seed=9, recipe=whole[0].recipe)

    def stop(*args, **more):
        save_checkpoint(first, tmp_path / "c.safetensors")
        raise EnoughError

    with monkeypatch.context() as patch, pytest.raises(EnoughError):
        patch.setattr("minicait.train.trainer.evaluate", stop)
        first.fit(*loaders())
    load_checkpoint(second, tmp_path / "c.safetensors")
    assert (second.batches, second.epoch) == (5, 0)
    assert second.fit(*loaders()) == whole[1]


def test_the_same_trainer_may_go_on_or_back(tmp_path):
    made, batches = trainer(), some_batches(4)
    made.step(*batches[0])  # in the middle of an accumulation
    save_checkpoint(made, tmp_path / "c.safetensors")
    assert "accumulated" in read_checkpoint(tmp_path / "c.safetensors").arrays
    losses = [made.step(*batch) for batch in batches[1:]]
    after = state(made)
    load_checkpoint(made, tmp_path / "c.safetensors")
    assert [made.step(*batch) for batch in batches[1:]] == losses
    assert_same(state(made), after)
    save_checkpoint(made, tmp_path / "d.safetensors")  # between two updates
    assert "accumulated" not in read_checkpoint(tmp_path / "d.safetensors").arrays
    made.step(*batches[0])
    load_checkpoint(made, tmp_path / "d.safetensors")
    assert_same(state(made), after)


def test_processes_see_the_weights_of_a_checkpoint(tmp_path):
    batches = some_batches(3)
    made = [trainer(threads=2, micro_batch=2, processes=processes) for processes in (True, False)]
    save_checkpoint(made[0], tmp_path / "c.safetensors")
    for batch in batches:
        made[0].step(*batch)
    load_checkpoint(made[0], tmp_path / "c.safetensors")
    assert [made[0].step(*b) for b in batches] == [made[1].step(*b) for b in batches]
    assert made[0].gradients.processes is not None
    made[0].close()


def test_weights_that_were_replaced_are_saved_and_loaded(tmp_path):
    made, other = trainer(), trainer(seed=9)
    made.model.norm.weight.data = made.model.norm.weight.data * 2
    save_checkpoint(made, tmp_path / "c.safetensors")
    other.model.norm.weight.data = other.model.norm.weight.data * 3
    load_checkpoint(other, tmp_path / "c.safetensors")
    assert (other.model.norm.weight.numpy() == 2).all()
    assert (flat_parameters(other.model).weights["norm.weight"] == 2).all()


def test_checkpoints_that_do_not_fit_are_refused_and_change_nothing(tmp_path):
    path = tmp_path / "c.safetensors"
    made = Trainer(small(), FULL)
    first, second, third = some_batches(3)
    made.step(*first), made.step(*second)
    save_checkpoint(made, path)
    made.step(*third)
    before = state(made)
    for other, message in [
        (Trainer(small(depth=1), FULL), "is of another run: its config differs in depth"),
        (Trainer(small(), FULL.changed(lr=1.0, epochs=9)), "is of another run: its recipe differs in epochs, lr"),
        (Trainer(small(), FULL.changed(optimiser="lamb")), "is of another run: its recipe differs in optimiser"),
    ]:
        own = state(other)
        with pytest.raises(ValueError, match=message):
            load_checkpoint(other, path)
        assert_same(state(other), own)
    content = path.read_bytes()
    for broken, message in [
        (content[:-100], "is damaged"),
        (content[:-100] + bytes(100), "was altered or damaged"),
        (content.replace(b'\\"batches\\": 2', b'\\"batches\\": 7'), "was altered or damaged"),
        (content.replace(HEAD, HEAD.replace(b"F32", b"I32")), "was altered or damaged"),
        (content.replace(b'"shape":[10,12]', b'"shape":[12,10]'), "was altered or damaged"),
        (b"nonsense", "is damaged"),
    ]:
        assert broken != content
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=message):
            load_checkpoint(made, path)
    assert_same(state(made), before)
    assert made.batches == 3 and made.optimiser.steps == 1


def test_files_that_are_no_checkpoints(tmp_path):
    minicait.save_weights(small(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"w\.safetensors is not a training checkpoint"):
        read_checkpoint(tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "none.safetensors")


def test_a_model_of_the_same_kind(tmp_path):
    """Whoever resumes a run needs no other file to know the model."""
    made = trainer()
    save_checkpoint(made, tmp_path / "c.safetensors", {"rows": [1, 2]})
    checkpoint = read_checkpoint(tmp_path / "c.safetensors")
    model = checkpoint.model()
    assert type(model) is type(made.model) and model.config == made.model.config
    assert checkpoint.state.extra == {"rows": [1, 2]}
