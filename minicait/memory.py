"""How much memory a run has taken."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def peak_megabytes() -> float | None:
    """Of this process; and of those it has forked, what they do not share with it. None where it cannot be told."""
    if sys.platform != "linux":
        if resource is None:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    try:  # there, getrusage starts from what the process had before it became this program
        megabytes = _kilobytes("/proc/self/status", "VmHWM") / 2**10
        for process in multiprocessing.active_children():  # they keep freed memory, so what they have is all they had
            rollup = f"/proc/{process.pid}/smaps_rollup"
            megabytes += sum(_kilobytes(rollup, name) for name in ("Private_Clean", "Private_Dirty")) / 2**10
    except (OSError, StopIteration):  # a sandbox that does not show it, or a process that has just ended
        return None
    return megabytes


def _kilobytes(path: str, name: str) -> int:
    return next(int(line.split()[1]) for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:"))
