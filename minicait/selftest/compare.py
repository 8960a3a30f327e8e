"""Run the same computation in two places and compare the results.

Differences are counted in roundings: the step from 1 to the next number of the dtype, times the largest value of the
array, or 1 if that is larger. So one limit fits all dtypes; it grows with the length of sums. A GPU is compared with
NumPy in the same dtype. Without a GPU, NumPy is compared with itself in float64, on the same inputs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from autograd.cases import roundings_apart

from .report import DIFFERS, OK, Finding

Run = Callable[[str, str, str], list[np.ndarray]]  # device, dtype, dtype that inputs are rounded to
Slack = Callable[[str, str], float]  # factor for the limit, by name and dtype

ALLOWED = 8  # roundings: twice what the tests allow, because a GPU fuses multiply-adds and has its own exp
SHOWN = 8  # names in the table; the file lists all


class Comparison(NamedTuple):
    name: str
    dtype: str
    apart: float  # in roundings
    slack: float  # factor for the limit
    error: str = ""  # traceback

    @property
    def agrees(self) -> bool:
        return not self.error and self.apart <= ALLOWED * self.slack

    def __str__(self) -> str:
        return f"{self.name} in {self.dtype} ({'error' if self.error else f'{self.apart:.3g} roundings'})"


def compared(runs: Mapping[str, Run], device: str, slack: Slack = lambda name, dtype: 1) -> Finding:
    """Compare every run in every dtype. One that raises does not stop the others."""
    dtypes = ("float32", "float16") if device == "cpu" else ("float32", "float16", "float64")
    rows = {name: [_comparison(name, run, device, dtype, slack(name, dtype)) for dtype in dtypes]
            for name, run in tqdm(runs.items(), disable=None, leave=False)}  # fmt: skip
    everything = [comparison for row in rows.values() for comparison in row]
    wrong = [comparison for comparison in everything if not comparison.agrees]
    largest = max((c.apart / c.slack for c in everything if not c.error), default=0.0)
    result = f"{len(everything) - len(wrong)} of {len(everything)} agree"
    if not wrong:
        return Finding(OK, f"{result}, differences at most {largest / ALLOWED:.0%} of what is allowed", _lines(rows))
    return Finding(DIFFERS, f"{result}, not {first_few(wrong)}", _lines(rows))


def first_few(wrong: Sequence[object]) -> str:
    return ", ".join(map(str, wrong[:SHOWN])) + (f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")


def _comparison(name: str, run: Run, device: str, dtype: str, slack: float) -> Comparison:
    try:
        got = run(device, dtype, dtype)
        want = run("cpu", "float64" if device == "cpu" else dtype, dtype)
        return Comparison(name, dtype, roundings_apart(got, want, dtype), slack)
    except Exception:
        return Comparison(name, dtype, np.inf, slack, traceback.format_exc())


def _lines(rows: Mapping[str, list[Comparison]]) -> Iterator[str]:
    """Yield a line for each run, then the tracebacks."""
    yield f"differences in roundings, relative to the largest value or 1; {ALLOWED} allowed, more for long sums"
    for name, row in rows.items():
        cells = (f"{c.dtype} {'error' if c.error else f'{c.apart:.3g}':7s} {'ok' if c.agrees else 'DIFFERS':7s}"
                 for c in row)  # fmt: skip
        yield f"{name:42s} {'  '.join(cells)}".rstrip()
    for comparison in (c for row in rows.values() for c in row if c.error):
        yield f"{comparison.name} in {comparison.dtype}:"
        yield from (f"  {line}" for line in comparison.error.splitlines())
