"""Memory of the self-test, and speed and memory of training and prediction, beside PyTorch where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from autograd import cuda

from ..bench import Job, Measured, measure
from ..machine import cpu_count, peak_megabytes
from .report import OK, Finding

MODEL = "cait_xxs24_224"
INSTALL = "PyTorch and timm are not installed: pip install -e '.[compare]'"


def memory(device: str) -> Finding:
    """Peak memory of this process, and memory of the GPU."""
    peak = peak_megabytes()
    process = "the peak of this process is unknown here" if peak is None else f"{peak:.0f} MB in this process"
    if device == "cpu":
        return Finding(OK, process)
    used, held, free, total = (count / 2**20 for count in cuda.memory(device))
    lines = [f"CuPy's memory pool: {used:.1f} MB in use, {held:.1f} MB held, no less than the peak",
             f"the GPU: {free:.0f} of {total:.0f} MB are free"]  # fmt: skip
    return Finding(OK, f"{process}; on the GPU {held:.0f} MB held by CuPy, of {total:.0f} MB", lines)


def batch(device: str) -> int:
    return 4 if device == "cpu" else 16


def measured(device: str, work: str, precision: str = "fp32") -> Finding:
    job = Job(MODEL, batch(device), work, cpu_count(), device=device, precision=precision)
    rounds = 3 if device == "cpu" else 10
    beside, sides = INSTALL, []
    if find_spec("torch") is not None and find_spec("timm") is not None:
        try:
            sides = measure(job, ["minicait", "timm"], rounds)
            beside = f"PyTorch {_rate(job, sides[1])}"
        except ValueError as error:  # if minicait was the cause, the next line raises again
            beside = str(error)
    sides = sides or measure(job, ["minicait"], rounds)
    lines = [f"{side.name}: seconds {' '.join(f'{s:.4f}' for s in side.seconds)}, peak {side.megabytes:.0f} MB"
             for side in sides]  # fmt: skip
    return Finding(OK, f"{_rate(job, sides[0])}; {beside}", lines)


def _rate(job: Job, side: Measured) -> str:
    return f"{job.batch / side.median:.1f} images/s, {side.megabytes:.0f} MB"
