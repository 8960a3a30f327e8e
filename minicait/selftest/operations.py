"""Every operation of the engine's table of cases: its results on the device, and its gradient."""

from __future__ import annotations

import autograd as ag
from autograd.cases import CASES

from .compare import compared, first_few
from .report import DIFFERS, OK, Finding


def values(device: str) -> Finding:
    """Compare values and gradients on the device with those on the CPU."""
    cases = {str(case): case for case in CASES}
    runs = {name: case.run for name, case in cases.items()}
    return compared(runs, device, lambda name, dtype: cases[name].slack(dtype))


def gradients() -> Finding:
    """Check all gradients numerically on the CPU, the reference for a GPU."""
    wrong, lines = [], []
    for case in CASES:
        try:
            ag.check_grads(case.fn, case.arrays())
        except Exception as error:
            wrong.append(str(case))
            lines += [f"{case}:", *(f"  {line}" for line in f"{type(error).__name__}: {error}".splitlines())]
    if not wrong:
        return Finding(OK, f"{len(CASES)} of {len(CASES)} agree")
    return Finding(DIFFERS, f"{len(CASES) - len(wrong)} of {len(CASES)} agree, not {first_few(wrong)}", lines)
