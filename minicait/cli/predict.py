"""minicait predict: what is on these images?"""

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
from ..data.picture import BadImageError, Picture
from ..data.transforms import evaluation
from ..files.pretrained import load_model
from ..machine import cpu_count, in_order
from ..run.gpu_memory import advising, to_evaluate
from ..train.evaluate import predict
from . import options

EXAMPLES = """examples:
  minicait predict --weights cait_xxs24_224 cat.jpg            published weights, downloaded
  minicait predict --weights best.safetensors photos/*.jpg     many images
  minicait predict --weights best.safetensors photos --json > guesses.json
"""
AT_A_TIME = 32


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("predict", help="tell what images show", epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="files, or folders of them")
    parser.add_argument("--weights", required=True, help="a file, or a published model such as cait_xxs24_224")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses per image (default: %(default)s)")
    parser.add_argument("--img-size", type=int, help="side of the images in pixels (default: the model's)")
    options.add_machine(parser.add_argument_group("machine"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_predict)


def _predict(args: argparse.Namespace) -> int:
    if args.top < 1:
        raise ValueError(f"--top must be at least 1, got {args.top}")
    device = options.device(args)
    paths = list(files(args.images))
    model, info = load_model(args.weights, args.img_size)
    needs = to_evaluate(model, min(AT_A_TIME, len(paths)), args.micro_batch)
    with advising(device, needs, "a smaller --img-size"):
        model.to(device)
    names = info.class_names or [f"class {i}" for i in range(model.num_classes)]
    prepare = evaluation(model.img_size[0], info.crop_ratio, info.mean, info.std)
    results, bad = [], []

    def read(path: Path) -> np.ndarray | BadImageError:
        try:
            return prepare(Picture(path), None)
        except BadImageError as error:
            return error

    ready = in_order(read, paths, args.threads or cpu_count(), ahead=2 * AT_A_TIME)
    for start in range(0, len(paths), AT_A_TIME):
        found, images = [], []
        for path, image in zip(paths[start : start + AT_A_TIME], ready, strict=False):
            if not isinstance(image, BadImageError):
                found.append(path)
                images.append(image)
            elif args.skip_bad_images:
                bad.append({"file": str(path), "error": str(image)})
                print(f"left out: {image}", file=sys.stderr)
            else:
                raise BadImageError(f"{image}; --skip-bad-images leaves such images out")
        with advising(device, needs, "a smaller --img-size"):
            logits = predict(model, np.stack(images), args.threads, args.micro_batch) if images else None
        chances = [] if logits is None else softmax(logits, -1)
        for path, p in zip(found, chances, strict=True):
            best = np.argsort(-p, kind="stable")[: args.top]
            guesses = [{"class": names[i], "index": int(i), "probability": round(float(p[i]), 6)} for i in best]
            results.append({"file": str(path), "guesses": guesses})
            if not args.json:
                print(path)
                for guess in guesses:
                    print(f"  {guess['probability']:6.1%}  {guess['class']}")
    if args.json:
        print(json.dumps(results + bad, indent=1))
    return 0 if results or not bad else 2


def files(given: list[Path]) -> Iterator[Path]:
    """The images that were named, and those in the folders that were."""
    for path in given:
        if path.is_dir():
            if not (found := images_in(path)):
                raise ValueError(f"{path} has no images")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"there is no image {path}")
