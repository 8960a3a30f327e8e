"""A run that is killed at every step of every write: it resumes, ends with the same bits, and leaves nothing behind."""

import shutil
import signal

import pytest

from tests.attack import TALLY
from tests.attack.bounded import count, run
from tests.attack.conftest import DATA
from tests.train.runs import assert_same_run


def train(weights, out, **options):
    return run("train", "--device", "cpu", "--weights", weights, "--out", out, *DATA, **options)


def killed_and_resumed(weights, whole_run, out, step):
    """Kill a run at a step of its writes, then kill its resumption, then let it end; False if it ended before that."""
    first = train(weights, out, fault=("kill_at_write", step))
    if first.code == 0:
        return False
    count("killed in a write", first)
    folder = out / whole_run.name
    assert first.code == -signal.SIGKILL
    if not any(folder.glob("checkpoint*.safetensors")):
        assert run("train", "--resume", folder).code == 2  # there is nothing to resume
        shutil.rmtree(folder)
        assert train(weights, out).code == 0
    else:
        second = run("train", "--device", "cpu", "--resume", folder, fault=("kill_at_write", 1 + step % 7))
        assert second.code == -signal.SIGKILL
        count("killed in a write", second)
        last = run("train", "--device", "cpu", "--resume", folder)
        assert last.code == 0, last.err
    assert_same_run(folder, whole_run)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {str(path.relative_to(whole_run)) for path in whole_run.rglob("*")}
    return True


@pytest.mark.parametrize("step", [5, 12, 23, 40])
def test_a_kill_in_a_write(weights, whole_run, tmp_path, step):
    assert killed_and_resumed(weights, whole_run, tmp_path, step)


@pytest.mark.slow
def test_a_hundred_kills_in_writes(weights, whole_run, tmp_path):
    """Every other step of all writes of a run. A write has seven or nine steps, so all of them have their turn."""
    step, before = 1, len(TALLY)
    while killed_and_resumed(weights, whole_run, tmp_path / str(step), step):
        shutil.rmtree(tmp_path / str(step))
        step += 2
    kills = len(TALLY) - before
    print(f"\n{kills} kills in the {step} steps of all writes; all runs ended with the same bits, and nothing was left")
    assert kills >= 100
