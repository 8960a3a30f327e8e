"""minicait eval: how often a trained model is right on the validation images of a dataset."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from ..data.loader import Batch, Loader
from ..data.transforms import evaluation
from ..train.evaluate import evaluate
from ..trained import load_model
from . import options

EXAMPLES = """examples:
  minicait eval --weights runs/photos-tiny-1/weights/best.safetensors --data photos
  minicait eval --weights cait_xxs24_224 --data imagenette            published weights, downloaded
  minicait eval --weights cait_s24_224 --data photos --img-size 288 --crop-ratio 0.9 --json
"""


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("eval", help="evaluate a trained model", epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("--weights", required=True, help="a file, or a published model such as cait_xxs24_224")
    options.add_data(parser, "shapes")
    parser.add_argument("--img-size", type=int, help="side of the images in pixels (default: the model's)")
    parser.add_argument("--crop-ratio", type=float, help="part of the shorter side that is seen (default: the file's)")
    parser.add_argument("--batch-size", type=int, default=64, help="images at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of shapes (default: %(default)s)")
    options.add_machine(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    device = options.device(args)
    model, info = load_model(args.weights, args.img_size)
    model.to(device)
    side = model.config["img_size"][0]
    images = options.source(args).open(side, args.seed).val
    places = _places(images.classes, info.class_names, model.config["num_classes"])
    ratio = info.crop_ratio if args.crop_ratio is None else args.crop_ratio
    prepare = evaluation(side, ratio, info.mean, info.std)
    loader = Loader(images, args.batch_size, transform=prepare, threads=args.threads, skip_bad=args.skip_bad_images)

    def batches() -> Iterator[Batch]:
        for batch in tqdm(loader, disable=None, unit="batch"):
            yield Batch(batch.images, places[batch.labels])

    before = time.perf_counter()
    scores = evaluate(model, batches(), args.threads)
    rate = (len(images) - len(loader.bad)) / (time.perf_counter() - before)
    if args.json:
        print(json.dumps({**scores._asdict(), "images": len(images) - len(loader.bad), "left_out": len(loader.bad),
                          "images_per_second": rate}))  # fmt: skip
        return 0
    for reason in loader.bad.values():
        print(f"left out: {reason}")
    count = f"{len(images) - len(loader.bad):,} images of {side} pixels, {rate:.3g} images/s"
    print(f"top-1 {scores.top1:.2%}, top-5 {scores.top5:.2%}, loss {scores.loss:.4f}; {count}")
    return 0


def _places(data: Sequence[str], model: Sequence[str] | None, outputs: int) -> np.ndarray:
    """For each class of the data, the model's output that stands for it: by name where the model has names."""
    if model is not None and list(data) == list(model):  # also where two classes have one name
        return np.arange(outputs)
    if model is None:
        if len(data) != outputs:
            raise ValueError(f"the model has {outputs} unnamed classes, the data has {len(data)}")
        return np.arange(outputs)
    unknown = [name for name in data if name not in model]
    if unknown:
        raise ValueError(f"the model does not know {len(unknown)} of the data's classes: {', '.join(unknown[:5])}")
    return np.array([model.index(name) for name in data])
