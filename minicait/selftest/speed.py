"""Images per second and peak memory, in training and prediction; beside PyTorch and timm where they are installed."""

from __future__ import annotations

from importlib.util import find_spec

from ..bench import Job, Measured, measure
from ..machine import cpu_count
from .report import OK, Finding

MODEL = "cait_xxs24_224"
INSTALL = "PyTorch and timm are not installed: pip install -e '.[compare]'"


def batch(device: str) -> int:
    return 4 if device == "cpu" else 16


def measured(device: str, work: str, precision: str = "fp32") -> Finding:
    job = Job(MODEL, batch(device), work, cpu_count(), device=device, precision=precision)
    rounds = 3 if device == "cpu" else 10
    beside = INSTALL
    sides: list[Measured] = []
    if find_spec("torch") is not None and find_spec("timm") is not None:
        try:
            sides = measure(job, ["minicait", "timm"], rounds)
            beside = f"PyTorch {_rate(job, sides[1])}"
        except ValueError as error:  # if it was not timm that could not be measured, the next line raises again
            beside = str(error)
    sides = sides or measure(job, ["minicait"], rounds)
    lines = [f"{side.name}: seconds {' '.join(f'{s:.4f}' for s in side.seconds)}, peak {side.megabytes:.0f} MB"
             for side in sides]  # fmt: skip
    return Finding(OK, f"{_rate(job, sides[0])}; {beside}", lines)


def _rate(job: Job, side: Measured) -> str:
    return f"{job.batch / side.median:.1f} images/s, {side.megabytes:.0f} MB"
