"""Whatever happens to a rank, all of them end, soon, and somebody says why."""

import signal

import pytest

from .launch import REPOSITORY, bits, is_open_mpi, mpiexec, sentences, train

pytestmark = pytest.mark.mpi
FAULTY = REPOSITORY / "tests/mpi/faulty.py"
ENDED_BY_FORCE = {2, 9}  # MPICH may report the signal that ended the others
ENDS_IN = 15  # seconds: the deadline is 4


@pytest.mark.parametrize("kind, codes, said", [
    ("kill", {9, 137}, None),
    ("freeze", {75}, "has had no answer from rank 1 on "),
    ("exit", {3}, None),
    ("bug", {1}, "rank 1 on "),
    ("error", ENDED_BY_FORCE, "the image 7.jpg is damaged"),
])  # fmt: skip
def test_a_rank_fails(kind, codes, said, tmp_path):
    ended = train(2, tmp_path, script=(FAULTY, kind, 1, 2), timeout=90, MINICAIT_MPI_DEADLINE="4")
    print(f"\n{kind}: all ranks ended {ended.seconds:.1f} s later, exit code {ended.code}")
    assert ended.code in codes, ended
    assert ended.seconds < ENDS_IN
    if said is not None:
        assert any(said in sentence and "rank 1 on " in sentence for sentence in sentences(ended.text)), ended.text
    if kind == "kill":  # what it leaves can be resumed
        (run,) = tmp_path.iterdir()
        whole, resumed = (
            train(1, tmp_path / "whole"),
            mpiexec(2, "-m", "minicait", "train", "--resume", run, "--micro-batch", 8),
        )
        assert whole.code == resumed.code == 0
        assert bits(run) == bits(tmp_path / "whole")


def test_rank_0_fails(tmp_path):
    ended = train(3, tmp_path, script=(FAULTY, "error", 0, 1))
    assert ended.code in ENDED_BY_FORCE and len(sentences(ended.text)) == 1 and "rank 0 on " in ended.text


def test_images_of_one_rank_that_are_not_finite(tmp_path):
    ended = train(2, tmp_path, script=(FAULTY, "not_finite", 1, 2))
    assert ended.code == 2
    (sentence,) = sentences(ended.text)
    assert "an image is not finite" in sentence


def test_a_rank_that_freezes_when_all_is_done(tmp_path):
    ended = train(2, tmp_path, script=(FAULTY, "freeze_at_the_end", 1, 1), MINICAIT_MPI_DEADLINE="4")
    assert ended.seconds < ENDS_IN + 15  # a whole run


def test_bad_input_is_one_sentence(tmp_path):
    for options, said in (
        (["--data", "nowhere"], "nowhere"),
        (["--runs", 0], "--runs must be at least 1, got 0"),
        (["--precision", "fp99"], "argument --precision: invalid choice"),
        (["--set", "lr=fast"], "lr"),
        (["--batch-size", 8, "--micro-batch", 4],
         "in micro-batches of 4 cannot be shared by 3 ranks: start at most 2, or try --micro-batch 2"),
        (["--preset", "lvvit_mini", "--set", "mixup=0", "--set", "cutmix=0"],
         "BatchNorm (patch_embed.bn1) couples the samples of a batch, so this model trains on a single rank only"),
    ):  # fmt: skip
        ended = train(3, tmp_path, *options)
        assert ended.code == 2, ended
        (sentence,) = sentences(ended.text)
        assert said in sentence
        assert "Traceback" not in ended.text


def test_a_deadline_that_is_no_time(tmp_path):
    ended = train(2, tmp_path, MINICAIT_MPI_DEADLINE="soon")
    assert ended.code != 0 and "Traceback" not in ended.text
    assert "MINICAIT_MPI_DEADLINE must be a number of seconds above 0, got 'soon'" in ended.text


def test_no_ranks_that_nobody_asked_for(tmp_path):
    """Where MPI starts processes without mpi4py, there would be as many runs as ranks."""
    name = "PMIX_RANK" if is_open_mpi() else "PMI_RANK"
    code = f"import os, sys; sys.modules['mpi4py'] = None; assert '{name}' in os.environ; " \
           "from minicait.train.job import world; world()"  # fmt: skip
    ended = mpiexec(1, "-c", code)
    assert ended.code == 1 and "several ranks need mpi4py" in ended.text and ended.code != signal.SIGKILL
