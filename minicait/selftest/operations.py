"""Every operation of the engine's table of cases, on the device and by its gradient."""

from __future__ import annotations

import autograd as ag
from autograd.cases import CASES

from .compare import SHOWN, compared
from .report import DIFFERS, OK, Finding


def values(device: str) -> Finding:
    """Values and gradients, there and on the CPU."""
    return compared({str(case): case.run for case in CASES}, device)


def gradients() -> Finding:
    """On the CPU, so that what a GPU is compared with is known to be right on this machine."""
    wrong, lines = [], []
    for case in CASES:
        try:
            ag.check_grads(case.fn, case.arrays())
        except Exception as error:
            wrong.append(str(case))
            lines += [f"{case}:", *(f"  {line}" for line in f"{type(error).__name__}: {error}".splitlines())]
    if not wrong:
        return Finding(OK, f"{len(CASES)} of {len(CASES)} agree")
    names = ", ".join(wrong[:SHOWN]) + (f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")
    return Finding(DIFFERS, f"{len(CASES) - len(wrong)} of {len(CASES)} agree, not {names}", lines)
