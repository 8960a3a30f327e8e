"""The memory that the self-test took: of this process, and on a GPU."""

from __future__ import annotations

from autograd import cuda

from ..machine import peak_megabytes
from .report import OK, Finding


def taken(device: str) -> Finding:
    peak = peak_megabytes()
    process = "the peak of this process cannot be told here" if peak is None else f"{peak:.0f} MB in this process"
    if device == "cpu":
        return Finding(OK, process)
    used, held, free, total = (count / 2**20 for count in cuda.memory(device))
    lines = [f"CuPy's memory pool: {used:.1f} MB in use now, {held:.1f} MB held, at least what was in use at the peak",
             f"the GPU: {free:.0f} of {total:.0f} MB are free"]  # fmt: skip
    return Finding(OK, f"{process}; on the GPU {held:.0f} MB held by CuPy, of {total:.0f} MB", lines)
