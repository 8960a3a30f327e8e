"""Runs that were interrupted, killed, or went wrong: nothing is lost, and resuming ends with the same bits."""

import os
import random
import signal
import subprocess
import time

import numpy as np
import pytest

import minicait.train.trainer
from minicait.cli import main
from minicait.optim import AdamW
from tests.train.helpers import Overflowing
from tests.train.runs import assert_same_run, start, tensors, train

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_and_resuming_goes_on(tmp_path, finished, number):
    """It reaches the worker processes too, as it does from a terminal, `timeout`, or a batch system."""
    process = start(tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 1/"):
            os.killpg(process.pid, number)
            break
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number
    assert (
        f"stopped by {number.name}; to resume: " in rest
        and "minicait train --resume" in rest
        and "Traceback" not in rest
    )
    assert main(["train", "--resume", str(tmp_path / "shapes-tiny-1"), "--device", "cpu", "--threads", "1"]) == 0
    assert_same_run(tmp_path / "shapes-tiny-1", finished)


def kill_and_resume(out, finished, seed):
    """Kill a run at a random moment, resume it, kill it again, until it is through. Returns how often it was killed."""
    rng = random.Random(seed)
    folder, kills = out / "shapes-tiny-1", 0
    while True:
        resume = ["--resume", str(folder)] if (folder / "checkpoint.safetensors").exists() else []
        if not resume and folder.exists():  # killed before its first batch
            for path in sorted(folder.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            folder.rmdir()
        process = start(out, *resume, module="minicait")
        for line in process.stdout:
            if line.startswith("folder:"):
                break
        try:
            process.wait(timeout=rng.uniform(0.02, 0.6) * (1 + kills / 8))  # on a busy machine it must get on, too
        except subprocess.TimeoutExpired:
            process.kill()
        code = process.wait()
        process.stdout.close()
        if code == 0:
            assert_same_run(folder, finished)
            return kills
        assert code == -signal.SIGKILL
        kills += 1
        if kills > 40:
            pytest.fail("it never got through")


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path):
    """With a million parameters: the longer a checkpoint takes, the more often a kill finds it half written."""
    start(tmp_path / "whole", module="minicait").communicate()
    kills, seed, finished = 0, 0, tmp_path / "whole/shapes-tiny-1"
    while kills < 20:
        (tmp_path / str(seed)).mkdir()
        kills += kill_and_resume(tmp_path / str(seed), finished, seed)
        seed += 1
    print(f"\n{kills} kills in {seed} runs; all ended with the same bits")


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path, finished):
    """A run that died after writing its log and before its checkpoint must not have the epoch twice."""
    process = start(tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            process.kill()
            break
    process.communicate()
    folder = tmp_path / "shapes-tiny-1"
    with (folder / "log.csv").open("a") as file:
        file.write(",".join("9" * 13) + "\n")
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    assert_same_run(folder, finished)


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path, monkeypatch, capsys):
    saved = []

    def full(fd):
        saved.append(1)
        if len(saved) > 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert train(tmp_path) == 2
    error = capsys.readouterr().err
    for part in ("could not be written", "No space left on device", "is intact: "):
        assert part in error
    monkeypatch.undo()
    assert main(["train", "--resume", str(tmp_path / "shapes-tiny-1"), "--device", "cpu"]) == 0


def test_a_damaged_checkpoint_is_refused(tmp_path, finished, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("args.json", "checkpoint.safetensors"):
        (folder / name).write_bytes((finished / name).read_bytes())
    content = bytearray((folder / "checkpoint.safetensors").read_bytes())
    content[-1000] ^= 1
    (folder / "checkpoint.safetensors").write_bytes(content)
    assert main(["train", "--resume", str(folder)]) == 2
    assert "checkpoint.safetensors was altered or damaged" in capsys.readouterr().err


def test_a_weight_that_is_not_finite_never_becomes_a_checkpoint(tmp_path, capsys, monkeypatch):
    real = AdamW.step

    def explode(self, *args):
        real(self, *args)
        if self.steps == 6:
            self.parameters.weights["norm.weight"][0] = np.inf

    monkeypatch.setattr(AdamW, "step", explode)
    assert train(tmp_path) == 2
    assert "the weights of norm.weight are not finite" in capsys.readouterr().err
    state = tensors(tmp_path / "shapes-tiny-1/checkpoint.safetensors")
    assert all(np.isfinite(value).all() for value in state.values())


def test_a_signal_in_the_last_evaluation_ends_the_other_runs_too(tmp_path, capsys, monkeypatch):
    real = minicait.train.trainer.evaluate
    calls = []

    def interrupted(*args, **more):
        calls.append(1)
        if len(calls) == 2:  # of the only epoch: the weights, then their average
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **more)

    monkeypatch.setattr(minicait.train.trainer, "evaluate", interrupted)
    assert train(tmp_path, "--epochs", "1", "--runs", "3") == 128 + signal.SIGTERM
    assert "stopped after 1 of 3 runs" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["shapes-tiny-1"]


def test_a_diverging_run_stops_with_a_word(tmp_path, capsys, monkeypatch):
    real = minicait.train.trainer.objective_for
    spoiled = lambda recipe: Overflowing(real(recipe), frozenset({4}), in_loss=True)  # noqa: E731
    monkeypatch.setattr(minicait.train.trainer, "objective_for", spoiled)
    assert train(tmp_path) == 2
    error = capsys.readouterr().err
    assert "training stopped at batch 5: " in error
    assert f"the last good checkpoint is {tmp_path / 'shapes-tiny-1/checkpoint.safetensors'}" in error
    assert time.time() - (tmp_path / "shapes-tiny-1/checkpoint.safetensors").stat().st_mtime < 60
