"""minicait selftest: check that everything works on this machine and its GPU."""

from __future__ import annotations

import argparse
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from autograd import cuda

from .. import __version__
from ..files.atomic import check_destination
from ..selftest import parts
from ..selftest.report import NOT_RUN, WIDTH, Finding, Part, in_full, is_stream, table, write
from . import options

ABOUT = """Run every operation, the kernels and some training steps, and compare the results: a GPU's with NumPy's, or
without a GPU NumPy's float32 and float16 with its float64."""
EXAMPLES = """examples:
  minicait selftest                 the GPU if it works, else the CPU; about a minute
  minicait selftest --gpu           on a GPU, or say why not; the first time, its kernels are compiled
  minicait selftest --device cuda:1
  minicait selftest --quick         without measuring speed; some seconds

exit codes:
  0    all results agree
  1    a result differs, or a part failed
  2    bad input, such as a missing GPU or a file that cannot be written
  130  stopped by Ctrl-C; the file has the results so far
"""
NARROWEST, WIDEST = 72, 120  # tables


def add_to(commands: Any) -> None:
    summary = "check that everything works on this machine"
    parser = options.add_command(commands, "selftest", _selftest, summary, EXAMPLES, ABOUT)
    parser.add_argument("--gpu", action="store_true", help="require a GPU")
    options.add_device(parser)
    parser.add_argument("--quick", action="store_true", help="do not measure speed")
    out = "full report, to attach to a bug report (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("minicait-selftest.txt"), metavar="FILE", help=out)


def _selftest(args: argparse.Namespace) -> int:
    todo = parts(_device(args), args.quick)
    if str(args.out) == "-":
        raise ValueError("the table is printed in any case: give the name of a file instead of -")
    check_destination(args.out)
    stopped = False
    try:
        _run(todo, args.out)
    except KeyboardInterrupt:
        stopped = True
        for part in todo:
            if not part.has_run:
                part.finding = Finding(NOT_RUN, "stopped")
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    print(f"\n{table(todo, min(max(width, NARROWEST), WIDEST))}\n")
    write(args.out, _text(todo))
    wrong = [part.name for part in todo if part.is_wrong]
    good = "stopped; all results so far agree" if stopped else "all results agree"
    print(f"something is wrong with: {'; '.join(wrong)}" if wrong else good)
    print(f"full report, to attach to a bug report: {args.out}", flush=True)
    return 130 if stopped else int(bool(wrong))


def _device(args: argparse.Namespace) -> str:
    if args.gpu and args.device == "cpu":
        raise ValueError("choose one of --gpu and --device cpu")
    if args.gpu and args.device is None and (reason := cuda.why_unusable()) is not None:
        raise ValueError(f"--gpu: no GPU can be used here: {reason}")
    return options.device(args)


def _run(todo: list[Part], out: Path) -> None:
    """Run all parts. The file is written before each, so that it names a part that crashes the process."""
    for i, part in enumerate(todo):
        part.finding = Finding(NOT_RUN, "it started and did not finish")
        if not is_stream(out):
            with suppress(*([OSError] if i else [])):  # later errors are reported by the last write
                write(out, _text(todo))
        print(f"{part.name}: {part.what}", flush=True)
        part.run()
        print(f"  {part.finding.verdict} ({part.seconds:.1f} s)", flush=True)


def _text(todo: list[Part]) -> str:
    return in_full(todo, f"minicait {__version__} selftest")
