"""minicait selftest: does everything work on this machine, and on its GPU?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from autograd import cuda

from .. import __version__
from ..selftest import parts
from ..selftest.report import in_full, opened, table

EXAMPLES = """examples:
  minicait selftest                 the GPU if it works, else the CPU; about a minute
  minicait selftest --gpu           on a GPU, or say why not; the first time, its kernels are compiled
  minicait selftest --quick         without measuring speed; some seconds
"""


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    about = "Runs every operation, the kernels and some training steps, and compares. A GPU is held against NumPy, " \
            "without one\nNumPy against its float64. Exit code 0 if all agrees, 1 if something differs."  # fmt: skip
    parser = commands.add_parser(
        "selftest", help="check that all works on this machine", description=about, epilog=EXAMPLES, formatter_class=raw
    )
    parser.add_argument("--gpu", action="store_true", help="insist on a GPU (default: the GPU if it works)")
    parser.add_argument("--quick", action="store_true", help="leave out the measurement of speed")
    out = "everything that was found, to attach to a bug report (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("minicait-selftest.txt"), metavar="FILE", help=out)
    parser.set_defaults(run=_selftest)


def _selftest(args: argparse.Namespace) -> int:
    if args.gpu and (reason := cuda.why_unusable()) is not None:
        raise ValueError(f"--gpu: no GPU can be used here: {reason}")
    todo = parts("cuda" if cuda.cuda_available() else "cpu", args.quick)
    with opened(args.out) as file:
        for part in todo:
            print(f"{part.name}: {part.what}", flush=True)
            part.run()
            print(f"  {part.finding.verdict} ({part.seconds:.1f} s)", flush=True)
        print(f"\n{table(todo)}\n")
        file.write(in_full(todo, f"minicait {__version__} selftest"))
    wrong = [part.name for part in todo if part.is_wrong]
    print(f"something is wrong with: {'; '.join(wrong)}" if wrong else "everything that was run agrees")
    print(f"in full, to attach to a bug report: {args.out}")
    return 1 if wrong else 0
