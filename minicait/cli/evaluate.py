"""minicait eval: accuracy of a trained model on the validation images of a dataset."""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

from tqdm import tqdm

from ..data.crops import check_crop_ratio
from ..data.device_loader import on_device
from ..data.loader import Batch, Loader
from ..data.transforms import evaluation
from ..files.pretrained import load_model, outputs_for
from ..run.advice import evaluation_memory, memory_advice
from ..text import printable
from ..train.evaluate import NOT_FINITE, evaluate
from . import options

EXAMPLES = """examples:
  minicait eval --weights runs/photos-tiny-1/weights/best.safetensors --data photos
  minicait eval --weights cait_xxs24_224 --data imagenette            published weights, downloaded
  minicait eval --weights cait_s24_224 --data photos --img-size 288 --crop-ratio 0.9 --json
"""


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "eval", _evaluate, "evaluate a trained model", EXAMPLES)
    add = parser.add_argument
    options.add_weights(parser)
    options.add_data(parser.add_argument_group("data"), val_fraction=None)
    add("--crop-ratio", type=float, help="share of the shorter side that is kept (default: as in the weights file)")
    add("--batch-size", type=int, default=64, help="(default: %(default)s)")
    add("--seed", type=int, default=0, help="random seed of shapes (default: %(default)s)")
    options.add_machine(parser.add_argument_group("machine"))
    add("--json", action="store_true", help="print JSON")


def _evaluate(args: argparse.Namespace) -> int:
    device = options.device(args)
    if args.crop_ratio is not None:
        check_crop_ratio(args.crop_ratio)
    model, info = load_model(args.weights, args.img_size)
    side = model.img_size[0]
    ratio = info.crop_ratio if args.crop_ratio is None else args.crop_ratio
    images = options.source(args).open(side, args.seed, ratio).val
    outputs = outputs_for(images.classes, info, model.num_classes)
    crop = evaluation(side, ratio, info.mean, info.std)
    loader = Loader(images, args.batch_size, transform=crop, threads=args.threads, skip_bad=args.skip_bad_images)
    start = time.perf_counter()
    memory = evaluation_memory(model, min(args.batch_size, len(images)), args.micro_batch)
    with memory_advice(device, memory, "a smaller --img-size"), on_device(loader, device) as there:
        batches = (Batch(x, outputs[labels]) for x, labels in tqdm(there, disable=None, unit="batch"))
        scores = evaluate(model.to(device), batches, args.threads, args.micro_batch, outputs)
    if not math.isfinite(scores.loss):
        raise ValueError(NOT_FINITE)
    count = len(images) - len(loader.bad)
    rate = count / (time.perf_counter() - start)
    if args.json:
        print(json.dumps({**scores._asdict(), "images": count, "left_out": len(loader.bad), "images_per_second": rate}))
        return 0
    for reason in loader.bad.values():
        print(f"skipped: {printable(reason)}")
    fewer = len(outputs) < model.num_classes
    all_classes = f" (guesses among all {model.num_classes:,} classes of the model)" if fewer else ""
    print(f"top-1 {scores.top1:.2%}, top-5 {scores.top5:.2%}, loss {scores.loss:.4f}{all_classes}; "
          f"{count:,} images of {side} pixels, {rate:.3g} images/s")  # fmt: skip
    if fewer:
        print(f"top-1 {scores.top1_of_data_classes:.2%} (guesses among the {len(outputs):,} classes of the data only)")
    return 0
