"""minicait selftest: does everything work on this machine, and on its GPU?"""

from __future__ import annotations

import argparse
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from autograd import cuda

from .. import __version__
from ..selftest import parts
from ..selftest.report import WIDTH, Part, check_out, in_full, is_stream, not_run, table, write
from . import options

EXAMPLES = """examples:
  minicait selftest                 the GPU if it works, else the CPU; about a minute
  minicait selftest --gpu           on a GPU, or say why not; the first time, its kernels are compiled
  minicait selftest --device cuda:1
  minicait selftest --quick         without measuring speed; some seconds

exit codes:
  0    everything that was run agrees
  1    something differs, or failed
  2    bad input, such as a GPU that is not there or a file that cannot be written
  130  stopped by Ctrl-C; the file has what was found until then
"""
NARROWEST, WIDEST = 72, 120  # tables


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    about = "Runs every operation, the kernels and some training steps, and compares. A GPU is held against NumPy, " \
            "without one\nNumPy against its float64."  # fmt: skip
    parser = commands.add_parser(
        "selftest", help="check that all works on this machine", description=about, epilog=EXAMPLES, formatter_class=raw
    )
    parser.add_argument("--gpu", action="store_true", help="insist on a GPU")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda if it works, else cpu)")
    parser.add_argument("--quick", action="store_true", help="leave out the measurement of speed")
    out = "everything that was found, to attach to a bug report (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("minicait-selftest.txt"), metavar="FILE", help=out)
    parser.set_defaults(run=_selftest)


def _selftest(args: argparse.Namespace) -> int:
    todo = parts(_device(args), args.quick)
    check_out(args.out)
    stopped = False
    try:
        _run(todo, args.out)
    except KeyboardInterrupt:
        stopped = True
        for part in todo:
            if not part.has_run:
                part.finding = not_run("stopped")
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    print(f"\n{table(todo, min(max(width, NARROWEST), WIDEST))}\n")
    write(args.out, _text(todo))
    wrong = [part.name for part in todo if part.is_wrong]
    ended = "stopped; what was run until then agrees" if stopped else "everything that was run agrees"
    print(f"something is wrong with: {'; '.join(wrong)}" if wrong else ended)
    print(f"in full, to attach to a bug report: {args.out}", flush=True)
    return 130 if stopped else int(bool(wrong))


def _device(args: argparse.Namespace) -> str:
    if args.gpu and args.device == "cpu":
        raise ValueError("choose one of --gpu and --device cpu")
    if args.gpu and args.device is None and (reason := cuda.why_unusable()) is not None:
        raise ValueError(f"--gpu: no GPU can be used here: {reason}")
    return options.device_named(args.device)


def _run(todo: list[Part], out: Path) -> None:
    """The file is written before each part. Should one take the process down with it, the file says which it was."""
    for i, part in enumerate(todo):
        part.finding = not_run("it began and did not end")
        if not is_stream(out):
            with suppress(*([ValueError] if i else [])):  # what is wrong at first is told at once, and later in the end
                write(out, _text(todo))
        print(f"{part.name}: {part.what}", flush=True)
        part.run()
        print(f"  {part.finding.verdict} ({part.seconds:.1f} s)", flush=True)


def _text(todo: list[Part]) -> str:
    return in_full(todo, f"minicait {__version__} selftest")
