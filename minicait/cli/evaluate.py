"""minicait eval: how often a trained model is right on the validation images of a dataset."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from ..data.loader import Batch, Loader
from ..data.transforms import evaluation
from ..files.pretrained import load_model, outputs_for
from ..run.gpu_memory import advising, to_evaluate
from ..train.evaluate import evaluate
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
    options.add_data(parser.add_argument_group("data"), "shapes", val_fraction=None)
    parser.add_argument("--img-size", type=int, help="side of the images in pixels (default: the model's)")
    parser.add_argument("--crop-ratio", type=float, help="part of the shorter side that is seen (default: the file's)")
    parser.add_argument("--batch-size", type=int, default=64, help="images at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of shapes (default: %(default)s)")
    options.add_machine(parser.add_argument_group("machine"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    device = options.device(args)
    model, info = load_model(args.weights, args.img_size)
    side = model.img_size[0]
    ratio = info.crop_ratio if args.crop_ratio is None else args.crop_ratio
    images = options.source(args).open(side, args.seed, ratio).val
    places = outputs_for(images.classes, info, model.num_classes)
    prepare = evaluation(side, ratio, info.mean, info.std)
    loader = Loader(images, args.batch_size, transform=prepare, threads=args.threads, skip_bad=args.skip_bad_images)

    def batches() -> Iterator[Batch]:
        for batch in tqdm(loader, disable=None, unit="batch"):
            yield Batch(batch.images, places[batch.labels])

    before = time.perf_counter()
    needs = to_evaluate(model, min(args.batch_size, len(images)), args.micro_batch)
    with advising(device, needs, "a smaller --img-size"):
        scores = evaluate(model.to(device), batches(), args.threads, args.micro_batch)
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
