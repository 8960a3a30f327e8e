"""Checkpoints of a run on a GPU: a few copies, written while training continues, and as safe as any."""

import os
import signal
import threading

import numpy as np
import pytest

from minicait.cli import main
from minicait.files import atomic
from minicait.models.cait import CaiT
from minicait.processes import Forked
from minicait.run import finish
from minicait.train import Recipe, Trainer
from minicait.train.checkpoint import LOSSES, Snapshot, read_checkpoint
from tests import hostcuda
from tests.hostcuda.test_training import SMALL, batch  # noqa: F401  (a fixture)
from tests.train.runs import assert_same_run, narrow_presets

pytestmark = pytest.mark.hostcuda
RUN = ["--img-size", "16", "--patch-size", "8", "--train-images", "40", "--val-images", "8", "--batch-size", "8",
       "--epochs", "1", "--precision", "fp16", "--checkpoint-minutes", "0"]  # fmt: skip


@pytest.fixture
def train(tmp_path):
    """Train, and return the exit code and the folder."""

    def run(*options, name="run"):
        options = options or ("--out", str(tmp_path / name), *RUN)
        with narrow_presets():
            return main(["train", "--device", "cuda", *options]), tmp_path / name / "shapes-tiny-1"

    run.folder = tmp_path
    return run


def test_four_copies_and_later_steps_do_not_change_them(batch):  # noqa: F811
    trainer = Trainer(CaiT(**SMALL), Recipe(ema_decay=0.9, accumulate=2), "cuda")
    for _ in range(2):
        trainer.step(*batch)
    with hostcuda.counting() as count:
        snapshot = Snapshot.of(trainer)
    assert count.copies_to_host == 4 and count.launches == 0  # weights, two moments, average
    assert len(snapshot.arrays) == 4 * len(trainer.model.parameters()) + len([LOSSES])
    before = {name: array.copy() for name, array in snapshot.arrays.items()}
    trainer.step(*batch)
    with hostcuda.counting() as count:
        Snapshot.of(trainer)
    assert count.copies_to_host == 5  # and the gradients of half an update
    trainer.step(*batch)
    for name, array in snapshot.arrays.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
        if name.startswith("mean/head"):
            assert not np.array_equal(array, trainer.optimiser.mean[name.removeprefix("mean/")].get())


def test_training_continues_while_a_checkpoint_is_written(train, monkeypatch):
    real_step, real_write = Trainer.step, Snapshot.write
    trained, writers = threading.Event(), []

    def step(self, *args):
        result = real_step(self, *args)
        if self.batches == 2:
            trained.set()  # while the checkpoint after the first batch was not yet written
        return result

    def write(self, *args):
        assert not writers or trained.wait(60)
        writers.append(threading.current_thread().name)
        real_write(self, *args)

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(Snapshot, "write", write)
    code, folder = train()
    assert code == 0 and len(writers) == 1 + 5 + 1  # before training, after each batch, after the epoch
    assert all(name.startswith("minicait-background") for name in writers)
    assert not [t for t in threading.enumerate() if t.name.startswith("minicait-background")]
    state = read_checkpoint(folder / "checkpoint.safetensors").state
    assert (state.batches, state.epoch) == (5, 1)
    assert read_checkpoint(folder / "checkpoint-previous.safetensors").state.batches == 5


def test_nothing_is_written_while_workers_are_forked(train, monkeypatch):
    """A fork has the locks of threads that it does not have."""
    real_fork, real_write, real_load = Forked.__init__, Snapshot.write, finish.load_model
    writing, found = [], []

    def noted(function):
        def call(*args):
            found.append((function.__name__, [*writing]))
            return function(*args)

        return call

    def write(self, *args):
        writing.append("a checkpoint")
        threading.Event().wait(0.3)
        real_write(self, *args)
        writing.clear()

    monkeypatch.setattr(Snapshot, "write", write)
    monkeypatch.setattr(Forked, "__init__", noted(real_fork))
    monkeypatch.setattr(finish, "load_model", noted(real_load))  # the loaders of a Grafit follow
    assert train("--out", str(train.folder), *RUN, "--threads", "2", "--checkpoint-minutes", "5")[0] == 0
    assert found == [("__init__", [])] * 2 + [("load_model", [])]


def test_a_disk_that_is_full_stops_the_run_with_the_same_words(train, monkeypatch, capsys):
    real, written = atomic.os.fsync, []

    def full(descriptor):
        if threading.current_thread() is not threading.main_thread():
            written.append(1)
            if len(written) > 4:  # a write flushes its file and its folder
                raise OSError(28, "No space left on device")
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    code, folder = train()
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("minicait: a file could not be written or read ([Errno 28] No space left on")
    assert "the last checkpoint is intact: " in error and error.count("\n") == 1
    assert read_checkpoint(folder / "checkpoint.safetensors").state.batches == 1
    assert not list(folder.glob(".minicait-*.tmp")) and not (folder / ".lock").exists()


def test_a_signal_waits_for_the_checkpoint_and_the_run_resumes_to_the_bit(train, monkeypatch):
    code, whole = train(name="whole")
    assert code == 0
    real_step, real_write, written = Trainer.step, Snapshot.write, []

    def step(self, *args):
        if self.batches == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real_step(self, *args)

    def write(self, *args):
        threading.Event().wait(0.05)  # so slow that the run would end before it
        real_write(self, *args)
        written.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", step)
        patch.setattr(Snapshot, "write", write)
        code, folder = train()
    assert code == 128 + signal.SIGTERM and len(written) == 4
    assert read_checkpoint(folder / "checkpoint.safetensors").state.batches == 3
    assert not (folder / ".lock").exists()
    assert train("--resume", str(folder))[0] == 0
    assert_same_run(folder, whole)
