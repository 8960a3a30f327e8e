"""minicait predict: classify images."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autograd.kernels import softmax

from ..data.folder import images_in
from ..data.picture import BadImageError
from ..data.transforms import evaluation
from ..run.advice import evaluation_memory, memory_advice
from ..text import printable
from ..train.evaluate import FILES, predict_files
from . import options

EXAMPLES = """examples:
  minicait predict photo.jpg                                   a small CaiT that knows Imagenette's ten classes
  minicait predict --weights cait_xxs24_224 cat.jpg            published weights, downloaded
  minicait predict --weights best.safetensors photos/*.jpg     many images
  minicait predict --weights best.safetensors photos --json > guesses.json
"""


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "predict", _predict, "classify images", EXAMPLES)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="files, or folders of them")
    options.add_weights(parser, shipped=True)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses per image (default: %(default)s)")
    options.add_machine(parser.add_argument_group("machine"))
    parser.add_argument(
        "--json", action="store_true", help=r"print JSON, with escapes such as \udce9 for names that are not UTF-8"
    )


def _predict(args: argparse.Namespace) -> int:
    options.check_positive(args, "top")
    device = options.device(args)
    paths = list(image_files(args.images))
    model, info = options.load(args)
    memory = evaluation_memory(model, min(FILES, len(paths)), args.micro_batch)
    names = [as_text(name) for name in info.class_names or (f"class {i}" for i in range(model.num_classes))]
    transform = evaluation(model.img_size[0], info.crop_ratio, info.mean, info.std)
    results, bad = [], []

    def skip(path: Path, error: BadImageError) -> None:
        bad.append({"file": as_text(path), "error": as_text(error)})
        print(f"skipped: {printable(error)}", file=sys.stderr)

    with memory_advice(device, memory, "a smaller --img-size"):
        model.to(device)
        skipping = skip if args.skip_bad_images else None
        for path, logits in predict_files(model, paths, transform, args.threads, args.micro_batch, skipping):
            p = softmax(logits, -1)
            best = np.argsort(-p, kind="stable")[: args.top]
            guesses = [{"class": names[i], "index": int(i), "probability": round(float(p[i]), 6)} for i in best]
            results.append({"file": as_text(path), "guesses": guesses})
            if not args.json:
                print(printable(path))
                for guess in guesses:
                    print(f"  {guess['probability']:6.1%}  {printable(guess['class'])}")
    if args.json:
        print(json.dumps(results + bad, indent=1, allow_nan=False))
    return 0 if results or not bad else 2


def as_text(name: object) -> str:
    """Return a name as valid text for JSON: bytes that are not UTF-8 become escapes such as \\udce9."""
    return str(name).encode(errors="backslashreplace").decode()


def image_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the given images, and those in the given folders."""
    for path in paths:
        if path.is_dir():
            if not (found := images_in(path)):
                raise ValueError(f"{path} has no images")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"there is no image {path}")
