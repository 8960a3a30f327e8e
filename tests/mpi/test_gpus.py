"""A GPU for each rank: CuPy's kernels on the host, in two processes; gradients go through the host, or straight."""

import csv

import pytest

from tests import hostcuda

from .launch import REPOSITORY, bits, mpiexec, sentences

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(hostcuda.why_not() is not None, reason=f"the real CuPy on the host: {hostcuda.why_not()}"),
]
SCRIPT = REPOSITORY / "tests/mpi/on_gpus.py"
SMALL = (
    *("--data", "shapes", "--train-images", 64, "--val-images", 10, "--epochs", 1, "--batch-size", 16),
    *("--img-size", 16, "--patch-size", 8, "--micro-batch", 4, "--precision", "fp16", "--set", "mixup=0.8"),
)


def train(ranks, out, *fault, **environment):
    return mpiexec(ranks, SCRIPT, *fault, "train", *SMALL, "--out", out, timeout=300, **environment)


def test_same_bits_and_a_step_that_all_skip(tmp_path):
    found = {}
    for name, ranks, aware in (("one", 1, "0"), ("two", 2, "0"), ("straight", 2, "1")):
        ended = train(ranks, tmp_path / name, "overflow", ranks - 1, 2, MINICAIT_GPU_AWARE_MPI=aware)
        assert ended.code == 0 and "CuPy on cuda:0" in ended.text, ended.text
        found[name] = bits(tmp_path / name, columns=0)  # the loss of the step that overflows is another on one rank
        (log,) = tmp_path.glob(f"{name}/*/log.csv")
        (row,) = csv.DictReader(log.read_text().splitlines())
        assert (row["steps"], row["skipped"]) == ("3", "1")
    assert found["one"] == found["two"] == found["straight"]


def test_a_rank_fails(tmp_path):
    ended = train(2, tmp_path, "kill", 1, 2)
    assert ended.code in {9, 137} and ended.seconds < 60


def test_stopped_and_resumed(tmp_path):
    """Rank 0 writes its checkpoint on a thread, and the others wait for it. The default is a piece for each GPU."""
    whole = [word for word in SMALL if word not in ("--micro-batch", 4)]
    for name in ("whole", "stopped"):
        fault = ("terminate", 1, 2) if name == "stopped" else ()
        ended = mpiexec(2, SCRIPT, *fault, "train", *whole, "--out", tmp_path / name, timeout=300, SLOW_WRITES="4")
        assert ended.code == (143 if fault else 0), ended.text
    (run,) = (tmp_path / "stopped").iterdir()
    resumed = mpiexec(2, SCRIPT, "train", "--resume", run, timeout=300)
    assert resumed.code == 0, resumed.text
    assert bits(tmp_path / "stopped", columns=0) == bits(tmp_path / "whole", columns=0)


def test_as_many_ranks_as_gpus(tmp_path):
    ended = train(3, tmp_path)
    assert ended.code == 2, ended
    (sentence,) = sentences(ended.text)
    assert " shows 2 for 3 ranks; start fewer there" in sentence
