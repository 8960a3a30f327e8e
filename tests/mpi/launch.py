"""mpiexec of this environment, MPICH's or Open MPI's, and the bits of what a run has written."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open

REPOSITORY = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
# mixing, stochastic depth, EMA, clipping, a schedule: all that has randomness or state
RECIPE = (
    *("--data", "shapes", "--train-images", 128, "--val-images", 70, "--epochs", 2, "--batch-size", 64),
    *("--img-size", 16, "--patch-size", 4, "--set", "mixup=0.8", "--set", "cutmix=1", "--set", "repeats=2"),
    *("--micro-batch", 8),
)


class Ended(NamedTuple):
    code: int
    text: str  # standard output and error
    seconds: float  # since the fault, if there was one (`faulty`), or else since the start


def is_open_mpi() -> bool:
    return "Open MPI" in subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=True).stdout


def mpiexec(ranks: int, *command: object, timeout: float = 120, **environment: str) -> Ended:
    """Run `python -m mpi4py COMMAND` on several ranks, with a thread of BLAS each."""
    own = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)} | environment
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if is_open_mpi() else []
    line = [MPIEXEC, *options, "-n", ranks, sys.executable, "-m", "mpi4py", *command]
    started = time.time()
    done = subprocess.run([str(word) for word in line], env=own, capture_output=True, text=True, timeout=timeout,
                          check=False)  # fmt: skip
    text, end = done.stdout + done.stderr, time.time()
    faults = re.findall(r"fault at ([\d.]+)", text)
    return Ended(done.returncode, text, end - float(faults[0] if faults else started))


def train(ranks: int, out: Path, *options: object, script: tuple[object, ...] = ("-m", "minicait"), **more) -> Ended:
    return mpiexec(ranks, *script, "train", *RECIPE, "--threads", 1, "--out", out, *options, **more)


def bits(folder: Path, columns: int = 10) -> str:
    """Hash of the last weights, and of the first columns of the log, which are results and not times."""
    (run,) = folder.iterdir() if not (folder / "args.json").is_file() else [folder]
    digest = hashlib.sha256()
    with safe_open(run / "weights/last.safetensors", "np") as file:
        for name in sorted(file.keys()):
            digest.update(file.get_tensor(name).tobytes())
    for line in (run / "log.csv").read_text().splitlines():
        digest.update(",".join(line.split(",")[:columns]).encode())
    return digest.hexdigest()


def sentences(text: str) -> list[str]:
    """What minicait said, without the noise of mpiexec."""
    return re.findall(r"^minicait(?: train)?: (.*)$", text, re.MULTILINE)
