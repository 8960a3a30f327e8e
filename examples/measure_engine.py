"""Measure the cost of the engine: time to record one operation, and memory of a long chain.

    python examples/measure_engine.py

Times are the least of several interleaved rounds, beside PyTorch's where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import timeit
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import autograd as ag
from autograd import Tensor

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

LENGTH, MEGABYTES = 60, 8


def microseconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least time of each call over interleaved rounds, so that a busy moment hits all alike."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], timeit.timeit(call, number=2000) / 2000 * 1e6)
    return best


def recording(rounds: int) -> None:
    a, b = (np.ones(16, np.float32) for _ in range(2))
    x, y = Tensor(a, requires_grad=True), Tensor(b)

    calls: dict[str, Callable[[], object]] = {
        "numpy    a + b": lambda: a + b,
        "autograd x + y, recorded": lambda: x + y,
        "autograd x * 2.0, recorded": lambda: x * 2.0,
        "autograd forward and backward of x + y": lambda: ag.grad(x + y, x, a),
    }
    if torch is not None:
        p, q = torch.ones(16, requires_grad=True), torch.ones(16)
        one = torch.ones(16)
        calls["torch    p + q, recorded"] = lambda: p + q
        calls["torch    forward and backward of p + q"] = lambda: torch.autograd.grad(p + q, p, one)
    times = microseconds(calls, rounds)
    with ag.no_grad():
        times |= microseconds({"autograd x + y, under no_grad": lambda: x + y}, rounds)
    plain = times["numpy    a + b"]
    print(f"{'16 float32 values':42s} {'µs':>7s} {'on top of NumPy':>16s}")
    for name, time in times.items():
        print(f"{name:42s} {time:7.2f} {time - plain:16.2f}")


def memory() -> None:
    """Memory that NumPy allocates for forward and backward over a chain of elementwise operations."""
    array = np.full(MEGABYTES * 250_000, 0.5, np.float32)
    tracemalloc.start()
    x = y = Tensor(array, requires_grad=True)
    for _ in range(LENGTH // 2):
        y = (y * 0.9).tanh()
    loss = y.sum()
    del y
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    loss.backward()
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert x.grad is not None
    print(f"\n{LENGTH} operations on arrays of {MEGABYTES} MB, beyond the input itself")
    for what, size in [
        ("after forward, before backward", before),
        ("at the peak of backward", peak),
        ("after backward, the loss still alive", after),
    ]:
        print(f"{what:42s} {size / 1e6:7.1f} MB")
    print("(30 tanh keep their output, 30 scalings keep nothing; what is left is the gradient)")


def lines() -> None:
    print("\nlines of autograd/, by file")
    folder = Path(ag.__file__).parent
    counts = {path.relative_to(folder): len(path.read_text().splitlines()) for path in sorted(folder.rglob("*.py"))}
    for path, count in counts.items():
        print(f"{path!s:42s} {count:7d}")
    print(f"{'all':42s} {sum(counts.values()):7d}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of the timing (default: %(default)s)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    pytorch = torch.__version__ if torch else "not installed"
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, PyTorch {pytorch}; {machine}")
    recording(args.rounds)
    memory()
    lines()


if __name__ == "__main__":
    main()
