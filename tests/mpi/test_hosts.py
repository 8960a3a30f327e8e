"""Two hosts, as network namespaces: the same bits as on one, few bytes on the wire, and an end if it is cut."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .launch import MPIEXEC, RECIPE, REPOSITORY, bits, is_open_mpi, sentences, train

HOSTS = REPOSITORY / "tests/mpi/hosts.sh"
STEPS, PARAMETERS = 4, 903_826  # of RECIPE
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]


@pytest.fixture
def two_hosts():
    if is_open_mpi():
        pytest.skip("Open MPI takes its launcher from elsewhere")
    subprocess.run([HOSTS, "down"], capture_output=True, check=False)
    subprocess.run([HOSTS, "up"], check=True)
    yield
    subprocess.run([HOSTS, "down"], check=False)


def start(out, *options):
    """Train on two hosts, a rank on each."""
    mpiexec = [MPIEXEC, "-launcher", "ssh", "-launcher-exec", HOSTS, "-hosts", "10.77.0.1,10.77.0.2", "-n", 2]
    line = ["ip", "netns", "exec", "minicait0", *mpiexec, sys.executable, "-m", "mpi4py", "-m", "minicait", "train",
            *RECIPE, "--threads", 1, "--out", out, *options]  # fmt: skip
    own = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "MINICAIT_MPI_DEADLINE": "4"}
    return subprocess.Popen([str(word) for word in line], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)  # fmt: skip


def sent_bytes():
    text = subprocess.run(["ip", "netns", "exec", "minicait0", "cat", "/proc/net/dev"], capture_output=True, text=True,
                          check=True).stdout  # fmt: skip
    (line,) = (line for line in text.splitlines() if "cable0" in line)
    return int(line.split()[9])


def test_two_hosts(two_hosts, tmp_path):
    run = start(tmp_path / "two")
    text, _ = run.communicate(timeout=120)
    assert run.returncode == 0 and "ranks: 2 on 2 hosts (" in text, text
    assert train(1, tmp_path / "one").code == 0
    assert bits(tmp_path / "two") == bits(tmp_path / "one")
    images = STEPS * 32 * 3 * 16 * 16 * 4  # the partners of mixup and cutmix
    ideal = STEPS * 2 * 4 * PARAMETERS / 2 + images
    sent = sent_bytes()
    print(f"\n{sent / 1e6:.2f} MB sent by a rank in {STEPS} steps, with start and end; ideal {ideal / 1e6:.2f} MB")
    assert sent < 1.1 * ideal


def test_a_cut_cable(two_hosts, tmp_path):
    run = start(tmp_path, "--epochs", 1000)
    wait_for(tmp_path)
    cut = time.perf_counter()
    subprocess.run([HOSTS, "cut"], check=True)
    text, _ = run.communicate(timeout=60)
    seconds = time.perf_counter() - cut
    print(f"\nafter the cut, all ends in {seconds:.1f} s with exit code {run.returncode}")
    assert run.returncode != 0 and seconds < 20
    assert any("has had no answer from rank 1 on minicait1 for 4 seconds" in said for said in sentences(text)), text


def wait_for(out: Path) -> None:
    """Wait until the first epoch is over."""
    end = time.monotonic() + 60
    while not list(out.glob("*/log.csv")):
        assert time.monotonic() < end
        time.sleep(0.1)
