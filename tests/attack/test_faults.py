"""Faults around a run: other processes, links, closed streams and terminals, and limits of the system."""

import os
import platform
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minicait.machine import numerics
from minicait.run.lock import FolderLock
from minicait.train.checkpoint import read_checkpoint
from tests.attack.bounded import ROOT, count, refused, run
from tests.train.runs import assert_same_run

MINICAIT = [sys.executable, "-m", "minicait"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def started(*options, until="epoch 1/"):
    """A process that trains, and its folder, once it has printed a line that begins like this."""
    command = [*MINICAIT, "train", "--device", "cpu", *map(str, options)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}, **output)
    folder = None
    for line in process.stdout:
        folder = Path(line.split()[1]) if line.startswith("folder:") else folder
        if line.startswith(until):
            break
    return process, folder


def long_run(out):
    return ["--out", out, "--epochs", 500, "--img-size", 16, "--train-images", 64, "--val-images", 20]


def test_two_processes_never_train_in_one_folder(tmp_path):
    process, folder = started(*long_run(tmp_path))
    refused("train", "--resume", folder, because=f"is in use by process {process.pid} on ")
    process.kill()
    process.communicate()
    process, again = started("--resume", folder, until="folder:")  # its workers do not hold the lock
    assert process.poll() is None and again == folder
    process.kill()
    process.communicate()


LINKED = ["log.csv", "curves.svg", "report-1.html", "args.json", "checkpoint.safetensors", "weights/best.safetensors",
          "checkpoint-previous.safetensors", "attention.png", ".log.csv.tmp", ".lock", "index.html",
          "page.safetensors"]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_in_a_run_folder_is_never_written_through(folder, tmp_path, name):
    precious = tmp_path / "precious"
    path = folder / name
    precious.write_bytes(path.read_bytes() if path.exists() else b"precious")
    before = precious.read_bytes()
    path.unlink(missing_ok=True)
    path.symlink_to(precious)
    result = run("train", "--resume", folder, "--device", "cpu")
    assert result.code in (0, 2) and "Traceback" not in result.err
    assert precious.read_bytes() == before and not precious.is_symlink()


def test_a_folder_of_weights_elsewhere_is_refused(folder, tmp_path):
    shutil.move(folder / "weights", tmp_path / "elsewhere")
    (tmp_path / "elsewhere/.minicait-0.tmp").touch()  # of another run, which is writing it
    (folder / "weights").symlink_to(tmp_path / "elsewhere")
    refused("train", "--resume", folder, because="weights is a symbolic link")
    assert (tmp_path / "elsewhere/.minicait-0.tmp").exists()


def test_a_lock_that_is_another_file_is_left_alone(folder, tmp_path):
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", folder / ".lock")
    refused("train", "--resume", folder, because=".lock is not a file of its own")
    (folder / ".lock").unlink()
    os.mkfifo(folder / ".lock")
    refused("train", "--resume", folder, because=".lock is not a file of its own")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_lock_ends_with_its_run(folder):
    lock = FolderLock(folder)
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on"):
        FolderLock(folder)
    del lock
    FolderLock(folder).release()
    assert not (folder / ".lock").exists()


def test_leftovers_of_killed_processes_are_removed(folder, whole_run):
    for path in (folder / ".minicait-0.tmp", folder / "weights/.minicait-1.tmp", folder / ".lock"):
        path.write_text("left")
    assert run("train", "--resume", folder, "--device", "cpu").code == 0
    names = [{str(path.relative_to(root)) for path in root.rglob("*")} for root in (folder, whole_run)]
    assert names[0] == names[1]


def test_a_damaged_checkpoint_has_one_before_it(folder, whole_run):
    path = folder / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    result = run("train", "--resume", folder, "--device", "cpu")
    assert result.code == 0, result.err
    assert "warning: checkpoint.safetensors was altered or damaged" in result.out
    assert "resuming from the one before it" in result.out
    assert_same_run(folder, whole_run)
    assert (folder / "checkpoint-damaged.safetensors").read_bytes() == content
    path.unlink()
    assert run("train", "--resume", folder, "--device", "cpu").code == 0
    (folder / "checkpoint-previous.safetensors").unlink()
    path.write_bytes(content)
    refused("train", "--resume", folder, because="was altered or damaged")


@pytest.mark.skipif(
    not numerics()["BLAS"].startswith("openblas") or platform.machine() != "x86_64",
    reason="only OpenBLAS on x86-64 can be told to use the kernels of an older CPU by these variables",
)
def test_resuming_with_other_kernels_warns(folder):
    """OpenBLAS and NumPy can be told to use the kernels of an older CPU."""
    environment = {**ENVIRONMENT, "OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V4"}
    command = [*MINICAIT, "train", "--device", "cpu", "--resume", str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "warning: results may differ in their last bits: the checkpoint has " in result.stdout
    assert ", now openblas" in result.stdout and "Nehalem" in result.stdout
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0 and "may differ" not in result.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies(tmp_path, number):
    process, folder = started(*long_run(tmp_path), "--threads", 2)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    if not children.split():
        pytest.skip("this machine trains without worker processes")
    os.kill(int(children.split()[-1]), number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and "Traceback" not in output and "out of memory" not in output, output
    assert f"a worker process was ended by {number.name}" in output
    assert f"to resume: minicait train --resume {folder}" in output or "-m minicait train --resume" in output


def test_a_closed_terminal_saves_and_ends(tmp_path):
    """All output fails once the terminal is gone, and its shell passes the signal on: it comes twice."""
    train = ["train", "--device", "cpu", "--out", str(tmp_path), "--img-size", "16", "--epochs", "500",
             "--train-images", "640", "--val-images", "20", "--checkpoint-minutes", "1e5"]  # fmt: skip
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe("bash", ["bash", "-i", "-c", f"{shlex.join([*MINICAIT, *train])}; true"], ENVIRONMENT)
    output = b""
    while b"estimate: " not in output:  # after five of twenty batches
        output += os.read(master, 1000)
    os.close(master)
    os.waitpid(pid, 0)
    folder = tmp_path / "shapes-tiny-1"
    for _ in range(100):  # the shell does not wait for it
        if not (folder / ".lock").exists():
            break
        time.sleep(0.1)
    assert not (folder / ".lock").exists()
    assert read_checkpoint(folder / "checkpoint.safetensors").state.batches % 20 > 0, "it was saved within an epoch"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_twice_saves_once(tmp_path, number):
    process, folder = started(*long_run(tmp_path), "--checkpoint-minutes", 1e5)
    process.send_signal(number)
    time.sleep(0.001)
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number and f"stopped by {number.name}; to resume: " in output, output
    assert not (folder / ".lock").exists() and "Traceback" not in output


@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1 2"])
@pytest.mark.parametrize("command", [["models"], ["models", "x"]], ids=["good", "bad"])
def test_closed_streams(closed, command):
    redirect = " ".join(f"{number}>&-" for number in closed.split())
    shell = f'"$@" {redirect}'
    result = subprocess.run(["sh", "-c", shell, "sh", *MINICAIT, *command], capture_output=True, env=ENVIRONMENT)
    assert result.returncode == (2 if "x" in command else 0) and b"Traceback" not in result.stderr


def test_a_full_disk_at_the_end_of_a_pipe():
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([*MINICAIT, "models"], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert result.returncode == 2
    assert result.stderr.startswith("minicait: ") and result.stderr.endswith("No space left on device\n")


def test_ctrl_c_while_modules_are_imported(tmp_path):
    (tmp_path / "tqdm.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(30)\n")
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen([*MINICAIT, "models"], stdout=-1, stderr=-1, text=True, env=environment)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[1] == "" and process.returncode == -signal.SIGINT


FAULTS = {
    "no_processes": "a worker process could not be started: Resource temporarily unavailable",
    "no_threads": "the system allows no more threads; try --threads 1",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_limits_of_the_system(tmp_path, fault):
    arguments = ["train", "--device", "cpu", "--smoke", "--threads", "2", "--out", tmp_path]
    result = run(*arguments, fault=(fault, 0))
    count("at a limit of the system", result)
    assert result.code == 2 and FAULTS[fault] in result.err and len(result.err.splitlines()) == 1, result


def test_little_address_space(tmp_path):
    result = run("train", "--smoke", "--preset", "m36", "--out", tmp_path, address_space=1 << 29)
    count("at a limit of the system", result)
    assert result.code == 2 and result.err.startswith("minicait: out of memory; "), result
