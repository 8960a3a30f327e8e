"""The same bits on any number of ranks, as long as nothing goes wrong, and after it has."""

import subprocess
import sys

import pytest

from .launch import RECIPE, REPOSITORY, bits, mpiexec, train

pytestmark = pytest.mark.mpi
SCRIPT = REPOSITORY / "examples/measure_ranks.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run without MPI, on two worker processes."""
    out = tmp_path_factory.mktemp("alone")
    line = [sys.executable, "-m", "minicait", "train", *RECIPE, "--threads", 2, "--out", out]
    subprocess.run([str(word) for word in line], cwd=REPOSITORY, check=True, capture_output=True)
    return out


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_same_bits(ranks, alone, tmp_path):
    ended = train(ranks, tmp_path)
    assert ended.code == 0, ended.text
    assert f"\nranks: {ranks} on " in f"\n{ended.text}"
    assert ended.text.count("epoch 2/2: ") == 1  # rank 0 alone speaks
    assert bits(tmp_path) == bits(alone)


def test_threads_and_no_option_of_mpi4py(alone, tmp_path):
    ended = train(2, tmp_path, "--threads", 2)
    assert ended.code == 0 and bits(tmp_path) == bits(alone), ended.text


def test_a_teacher_accumulation_and_uneven_shares(alone, tmp_path):
    (teacher,) = alone.glob("*/weights/last.safetensors")
    own = ["--preset", "deit_mini_distilled", "--teacher", teacher, "--set", "accumulate=2", "--micro-batch", 7]
    for ranks in (1, 3):
        ended = train(ranks, tmp_path / str(ranks), *own)
        assert ended.code == 0, ended.text
    assert bits(tmp_path / "1") == bits(tmp_path / "3")


def test_stopped_on_four_ranks_and_resumed_on_two_and_three(alone, tmp_path):
    faulty = REPOSITORY / "tests/mpi/faulty.py"
    stopped = train(4, tmp_path, script=(faulty, "terminate", 2, 2))
    (run,) = tmp_path.iterdir()
    assert stopped.code == 143 and "to resume: mpiexec -n 4 " in stopped.text, stopped.text
    again = train_on(run, 2, script=(faulty, "terminate", 1, 1))
    assert again.code == 143, again.text
    last = train_on(run, 3)
    assert last.code == 0, last.text
    assert bits(run) == bits(alone)


def train_on(run, ranks, script=("-m", "minicait")):
    return mpiexec(ranks, *script, "train", "--resume", run, "--threads", 1, "--micro-batch", 8)


def test_the_example_that_measures():
    hashes = set()
    for ranks in (1, 2):
        ended = mpiexec(
            ranks, REPOSITORY / "examples/measure_ranks.py", "--steps", 6, "--batch-size", 64, "--threads", 1
        )
        assert ended.code == 0 and f"{ranks} ranks, 1 threads each: 6 steps, " in ended.text, ended.text
        hashes.add(ended.text.split("SHA-256 ")[1].split()[0])
    assert len(hashes) == 1
