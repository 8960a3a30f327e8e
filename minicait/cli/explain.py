"""minicait explain: an HTML report on what a model sees in an image."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ..data.crops import centre_crop
from ..data.picture import Picture
from ..explain import block_graph, look, numbered, write_report
from ..files.atomic import check_destination
from ..text import printable
from . import options
from .predict import image_files

EXAMPLES = """examples:
  minicait explain photo.jpg                                                   the weights that come with the package
  minicait explain cat.jpg --weights cait_xxs24_224 --out report.html          published weights, downloaded
  minicait explain photos/*.jpg --weights best.safetensors --out report.html   report-1.html, report-2.html, ...
  minicait explain cat.jpg --weights best.safetensors --png --json             pictures and numbers beside the page
"""


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "explain", _explain, "show what a model sees", EXAMPLES)
    add = parser.add_argument
    add("images", nargs="+", type=Path, metavar="IMAGE", help="files, or folders of them")
    options.add_weights(parser, shipped=True)
    add("--out", type=Path, default=Path("report.html"), metavar="FILE",
        help="the page; several images have numbered pages (default: %(default)s)")  # fmt: skip
    add("--png", action="store_true", help="also write the pictures as files")
    add("--json", action="store_true", help="also write the numbers as a file")


def _explain(args: argparse.Namespace) -> int:
    if args.out.suffix != ".html":
        raise ValueError(f"--out must be a file whose name ends in .html, got {args.out}")
    check_destination(args.out)
    paths = list(image_files(args.images))
    model, info = options.load(args)
    graph = None
    for number, path in enumerate(paths, 1):
        out = args.out if len(paths) == 1 else numbered(args.out, number)
        image = np.asarray(centre_crop(Picture(path).decode(), model.img_size[0], info.crop_ratio))
        inside = look(model, image, info.class_names, info.mean, info.std)
        graph = block_graph(model) if graph is None else graph
        written = write_report(inside, out, printable(path.name), graph, args.png, args.json)
        best, size = inside.best[0], out.stat().st_size / 1e6
        more = f" and {len(written) - 1} more files" if len(written) > 1 else ""
        guess = f"{inside.classes[best]} {inside.probabilities[best]:.1%}"
        print(printable(f"{path}: {guess}; {out}, {size:.1f} MB{more}"))
    return 0
