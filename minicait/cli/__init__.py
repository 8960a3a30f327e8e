"""minicait train | eval | predict | retrieve | explain | label-tokens | bench | models | weights | selftest | learn.

Also as `python -m minicait`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import __version__
from ..data.picture import BadImageError
from . import bench, evaluate, explain, label_tokens, learn, predict, retrieve, selftest, train, weights
from .guard import guarded
from .options import Parser

EXAMPLES = """examples:
  minicait train --data photos                              your own images, a folder for each class
  minicait eval --weights cait_xxs24_224 --data imagenette  published weights on Imagenette
  minicait predict --weights runs/photos-tiny-1/weights/best.safetensors cat.jpg
  minicait explain --weights runs/photos-tiny-1/weights/best.safetensors cat.jpg --out report.html
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; bad input is one sentence and 2."""
    args = parser().parse_args(arguments)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    try:
        return args.run(args)
    except BadImageError as error:
        if getattr(args, "skip_bad_images", True) or "--skip-bad-images" in str(error):  # a run says how to resume
            raise
        raise BadImageError(f"{error}; --skip-bad-images skips such images") from error


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser("minicait", description=__doc__, epilog=EXAMPLES, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"minicait {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (train, evaluate, predict, retrieve, explain, label_tokens, bench, weights, selftest, learn):
        module.add_to(commands)
    return top
