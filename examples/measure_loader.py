"""Measure the throughput of the loader beside bare decoding with Pillow, and the time training waits for images.

    python examples/measure_loader.py photos                 # a folder that has a folder for each class
    python examples/measure_loader.py photos --side 64

Images are augmented as in the paper's recipe, and in simpler ways.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

from PIL import Image

import minicait
from minicait.cli.guard import guarded
from minicait.data import Augmentation, Loader, evaluation, train_and_val, training
from minicait.data.loader import Dataset
from minicait.data.transforms import Transform
from minicait.machine import cpu_count, in_order
from minicait.train import Trainer

WAYS = {
    "crops and flips": Augmentation("resized", flip=0.5),
    "all of the paper's recipe": Augmentation("resized", flip=0.5, rand_augment=9, erasing=0.25),
}


def pillow_rate(paths: list[Path], threads: int, seconds: float) -> float:
    """Images per second, decoding alone."""
    count, before = 0, time.perf_counter()
    endless = (paths[i % len(paths)] for i in range(10**9))
    for _ in in_order(lambda path: Image.open(path).convert("RGB"), endless, threads, ahead=4 * threads):
        count += 1
        if (taken := time.perf_counter() - before) > seconds:
            break
    return count / taken


def loader_rate(images: Dataset, transform: Transform, seconds: float) -> float:
    """Images per second, with no training beside it."""
    loader = Loader(images, min(32, len(images)), training=True, transform=transform)
    count, epoch, before = 0, 0, time.perf_counter()
    while (taken := time.perf_counter() - before) < seconds:
        for batch in loader.epoch(epoch):
            count += len(batch.labels)
            if time.perf_counter() - before >= seconds:
                break
        epoch += 1
    return count / taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--side", type=int, default=224, help="side of the prepared images (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="duration of each measurement (default: %(default)s)")
    args = parser.parse_args()
    images, _ = train_and_val(args.folder)
    paths = [path for path, _ in images.samples]
    bare = {threads: pillow_rate(paths, threads, args.seconds) for threads in sorted({1, cpu_count()})}
    for threads, rate in bare.items():
        print(f"bare Pillow, {threads} threads, decoding only: {rate:.0f} images/s")
    ways = {"the middle, for evaluation": evaluation(args.side)}
    ways |= {name: training(how, args.side) for name, how in WAYS.items()}
    for name, transform in ways.items():
        rate = loader_rate(images, transform, args.seconds)
        print(
            f"loader, {cpu_count()} threads, {name}: {rate:.0f} images/s, {rate / bare[cpu_count()]:.2f} of bare Pillow"
        )

    model = "cait_xxs24_224" if args.side == 224 else "cait_tiny_64"
    size = min(8 if args.side == 224 else 64, len(images))
    trainer = Trainer(minicait.create_model(model, len(images.classes), img_size=args.side))
    loader = Loader(images, size, training=True, transform=training(WAYS["all of the paper's recipe"], args.side))
    batches = (batch for epoch in range(10**6) for batch in loader.epoch(epoch))
    for batch in islice(batches, 2):
        trainer.step(*batch)
    loader.waited, before, steps = 0.0, time.perf_counter(), 0
    while time.perf_counter() - before < 2 * args.seconds:
        trainer.step(*next(batches))
        steps += 1
    taken = time.perf_counter() - before
    speed, waiting = steps * size / taken, loader.waited / taken
    print(f"{model}, batch {size}: {speed:.1f} images/s, {waiting:.1%} of the time waiting for images")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "measure_loader"))
