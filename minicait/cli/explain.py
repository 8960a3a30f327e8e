"""minicait explain: an HTML report on what a model sees in an image."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.crops import centre_crop
from ..data.picture import Picture
from ..explain import Facts, block_graph, find_class, look, numbered, write_report
from ..files.atomic import check_destination
from ..files.weights import with_origin
from ..text import printable, shortened
from . import options
from .predict import image_files

EXAMPLES = """examples:
  minicait explain photo.jpg                                                   the weights that come with the package
  minicait explain cat.jpg --weights cait_xxs24_224 --out report.html          published weights, downloaded
  minicait explain photos/*.jpg --weights best.safetensors --out report.html   report-1.html, report-2.html, ...
  minicait explain cat.jpg --weights best.safetensors --png --json             pictures and numbers beside the page
  minicait explain cat.jpg --weights best.safetensors --label cat              say whether the prediction is correct
"""


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "explain", _explain, "show what a model sees", EXAMPLES)
    add = parser.add_argument
    add("images", nargs="+", type=Path, metavar="IMAGE", help="files, or folders of them")
    options.add_weights(parser, shipped=True)
    add("--out", type=Path, default=Path("report.html"), metavar="FILE",
        help="the page; several images have numbered pages (default: %(default)s)")  # fmt: skip
    add("--label", metavar="NAME", help="the true class of the images, by its name or ImageNet's WordNet ID (default: "
        "the folder that an image lies in, if it is named like a class)")  # fmt: skip
    add("--png", action="store_true", help="also write the pictures as files")
    add("--json", action="store_true", help="also write the numbers as a file")


def _explain(args: argparse.Namespace) -> int:
    if args.out.suffix != ".html":
        raise ValueError(f"--out must be a file whose name ends in .html, got {args.out}")
    check_destination(args.out)
    paths = list(image_files(args.images))
    model, info = options.load(args)
    classes = info.class_names or [f"class {i}" for i in range(model.num_classes)]
    given = None if args.label is None else _label(args.label, classes)
    weights = printable(with_origin(Path(args.weights).name, info.origin))
    graph = None
    for number, path in enumerate(paths, 1):
        out = args.out if len(paths) == 1 else numbered(args.out, number)
        image = np.asarray(centre_crop(Picture(path).decode(), model.img_size[0], info.crop_ratio))
        inside = look(model, image, classes, info.mean, info.std)
        graph = block_graph(model) if graph is None else graph
        label = find_class(path.absolute().parent.name, classes) if given is None else given
        written = write_report(inside, out, printable(path.name), graph, args.png, args.json, Facts(label, weights))
        best, size = inside.best[0], out.stat().st_size / 1e6
        more = f" and {len(written) - 1} more files" if len(written) > 1 else ""
        guess = f"{classes[best]} {inside.probabilities[best]:.1%}"
        guess += "" if label is None else ", correct" if label == best else f", true class: {classes[label]}"
        print(printable(f"{path}: {guess}; {out}, {size:.1f} MB{more}"))
    return 0


def _label(name: str, classes: Sequence[str]) -> int:
    """Index of the class that --label names."""
    found = find_class(name, classes)
    if found is None:
        near = difflib.get_close_matches(name, classes, n=1)
        known = f"it has {', '.join(map(shortened, classes[:5]))}{', ...' * (len(classes) > 5)}"
        hint = f"did you mean {near[0]}?" if near else known
        raise ValueError(f"--label: the model has no class {shortened(name)}; {hint}")
    return found
