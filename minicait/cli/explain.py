"""minicait explain: what a model sees in an image, as a page to look at."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ..data.crops import centre_crop
from ..data.picture import Picture
from ..explain import block_graph, look, numbered, write_report
from ..files.pretrained import load_model
from .predict import files

EXAMPLES = """examples:
  minicait explain cat.jpg --weights cait_xxs24_224 --out report.html          published weights, downloaded
  minicait explain photos/*.jpg --weights best.safetensors --out report.html   report-1.html, report-2.html, ...
  minicait explain cat.jpg --weights best.safetensors --png --json             pictures and numbers beside the page
"""


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("explain", help="show what a model sees", epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="files, or folders of them")
    parser.add_argument("--weights", required=True, help="a file, or a published model such as cait_xxs24_224")
    page = "the page; of several images, each has one with its number (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help=page)
    parser.add_argument("--img-size", type=int, help="side of the images in pixels (default: the model's)")
    parser.add_argument("--png", action="store_true", help="write the pictures as files, too")
    parser.add_argument("--json", action="store_true", help="write the numbers as a file, too")
    parser.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> int:
    _check(args.out)
    paths = list(files(args.images))
    model, info = load_model(args.weights, args.img_size)
    side, graph = model.img_size[0], None
    for number, path in enumerate(paths, 1):
        out = args.out if len(paths) == 1 else numbered(args.out, number)
        image = np.asarray(centre_crop(Picture(path).decode(), side, info.crop_ratio))
        inside = look(model, image, info.class_names, info.mean, info.std)
        graph = block_graph(model) if graph is None else graph
        try:
            written = write_report(inside, out, path.name, graph, args.png, args.json)
        except OSError as error:
            raise ValueError(f"{error.filename or out} cannot be written: {error.strerror or error}") from error
        best = inside.best[0]
        more = f" and {len(written) - 1} more beside it" if len(written) > 1 else ""
        size = out.stat().st_size / 1e6
        print(f"{path}: {inside.classes[best]} {inside.probabilities[best]:.1%}; {out}, {size:.1f} MB{more}")
    return 0


def _check(out: Path) -> None:
    """Before anything is loaded or downloaded."""
    if out.suffix != ".html":
        raise ValueError(f"--out must be a file whose name ends in .html, got {out}")
    if out.is_dir():
        raise ValueError(f"{out} cannot be written: it is a folder")
    if not out.parent.is_dir():
        raise ValueError(f"{out} cannot be written: there is no folder {out.parent}")
