"""minicait label-tokens: label maps of training images, by a trained model, for `minicait train --token-labels`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..data.source import Source
from ..files.pretrained import open_pretrained
from ..run.advice import evaluation_memory, memory_advice
from ..run.console import device_line
from ..run.label_picture import write_label_picture
from ..run.signals import Stopped, StopSignals
from ..text import printable
from ..train.annotate import CELLS, WINDOW, Annotator, annotate
from . import options

ABOUT = """Make a label map of every training image: a grid of cells, each with the classes that a trained model, the
annotator, sees there. All maps are in one file, from which `minicait train --token-labels` makes a label for every
patch of every crop.

An annotator that classifies patches (LV-ViT) has logits for each of them. A head that has only ever seen a class token
(DeiT, CaiT) cannot label patches: any other model looks at windows of the image, around the centre of each cell. A
window stays inside the image, so cells at the border share one.

After an interruption the same command continues, and ends with the same file to the byte.
"""
EXAMPLES = """examples:
  minicait label-tokens --weights lvvit_s_224 --img-size 448 --data photos --out labels.safetensors    28 x 28 cells
  minicait label-tokens --weights deit_tiny_patch16_224 --data imagenette --out labels.safetensors     by windows
  minicait train --data imagenette --preset lvvit_mini --token-labels labels.safetensors
"""
ESTIMATE_AFTER = 3  # batches


def add_to(commands: Any) -> None:
    parser = options.add_command(
        commands, "label-tokens", _label, "label the patches of training images", EXAMPLES, ABOUT
    )
    add = parser.add_argument
    add("--weights", required=True, help=f"the annotator: a file, or published weights: {options.PUBLISHED}")
    add("--img-size", type=int,
        help="side of its input images in pixels; larger ones have more patches (default: the model's)")  # fmt: skip
    add("--cells", type=int, metavar="N",
        help=f"rows and columns of the map, by a model that needs windows (default: {CELLS})")  # fmt: skip
    add("--window", type=float, metavar="F", help="side of a window, as a share of the image's "
        f"(default: {WINDOW})")  # fmt: skip
    add("--out", type=Path, required=True, metavar="FILE",
        help="the label maps, .safetensors; a picture of some is written beside them")  # fmt: skip
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="shapes", help=f"{options.DATA} (default: %(default)s)")
    data.add_argument("--train-images", type=int, metavar="N",
                      help="label at most N training images (default: all, or 6000 shapes)")  # fmt: skip
    data.add_argument(
        "--difficulty", default=Source.difficulty, help="easy, medium or hard shapes (default: %(default)s)"
    )
    data.add_argument("--seed", type=int, default=0, help="random seed of shapes (default: %(default)s)")
    options.add_machine(parser.add_argument_group("machine"))


def _label(args: argparse.Namespace) -> int:
    options.check_positive(args, "img_size", "cells", "train_images")
    device = options.device(args)
    if args.out.suffix != ".safetensors":
        raise ValueError(f"--out must be a file whose name ends in .safetensors, got {args.out}")
    side = open_pretrained(args.weights)[1].config.img_size[0]  # of shapes, which are drawn as in training
    source = Source(args.data, args.difficulty, args.train_images, val_fraction=None)  # of a folder, all images
    images = source.open(side, args.seed).train
    how = args.img_size, args.cells, args.window, device, args.threads, args.micro_batch
    annotator = Annotator(args.weights, list(images.classes), *how)
    rows, columns = annotator.cells
    looks = f", from {annotator.looks} windows" if annotator.looks > 1 else ""
    size = len(images) * rows * columns * annotator.description.top * 4 / 1e6
    lines = {
        "device": device_line(device, args.threads),
        "annotator": f"{args.weights}, at {annotator.side} pixels",
        "data": f"{args.data}, {len(images):,} training images, {len(images.classes)} classes",
        "labels": f"{rows} x {columns} cells for each image{looks}; {args.out}, {size:.3g} MB",
    }
    print("\n".join(f"{name}: {printable(line)}" for name, line in lines.items()), flush=True)
    progress = _Progress(len(images))
    memory = evaluation_memory(annotator.model, annotator.batch * annotator.looks, args.micro_batch)
    with progress.signals, memory_advice(device, memory, "a smaller --img-size"):
        file = annotate(images, annotator, args.out, args.skip_bad_images, progress)
    if missing := file.without_map():
        print(f"images that could not be read, and have no map: {missing:,}")
    print(printable(f"{progress.summary()}; label maps: {file.path}, see {write_label_picture(file, images)}"))
    return 0


class _Progress:
    """Shows how far the annotator is, and stops it after a signal."""

    def __init__(self, total: int) -> None:
        self.total, self.batches, self.done, self.signals = total, 0, total, StopSignals()
        self.start, self.first = time.perf_counter(), total

    def __call__(self, done: int) -> None:
        if not self.batches:
            self.start, self.first, self.done = time.perf_counter(), done, done
            if done:
                print(f"continuing after {done:,} images", flush=True)
            self.bar = tqdm(total=self.total, initial=done, disable=None, unit="image")
        self.bar.update(done - self.done)
        self.done, self.batches = done, self.batches + 1
        if self.batches == ESTIMATE_AFTER:
            tqdm.write(f"estimate: {(self.total - done) / self.rate / 60:.1f} minutes left, {self.rate:.3g} images/s")
            sys.stdout.flush()
        if done == self.total or self.signals.received is not None:
            self.bar.close()
        if self.signals.received is not None and done < self.total:
            raise Stopped(self.signals.received, "the same command again")

    @property
    def rate(self) -> float:
        """Images per second."""
        return (self.done - self.first) / (time.perf_counter() - self.start)

    def summary(self) -> str:
        if self.first == self.total:
            return "complete already"
        return f"{self.done - self.first:,} images, {self.rate:.3g} images/s"
