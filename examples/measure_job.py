"""Measure how much of a training job is training: the main job's images per second beside those of the bare step.

    python examples/measure_job.py                        # Imagenette, as examples/train_imagenette.py trains on it
    python examples/measure_job.py --recipe imagenette    # another recipe

The job loads, crops, augments and mixes images, clips gradients and averages weights. The bare step trains on one batch
that stays in memory. The two take turns, some steps each, and the median of the ratios is printed. Evaluation is not
part of it. `--out FILE` also writes the turns as CSV.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from minicait import create_model
from minicait.cli import options
from minicait.cli.guard import guarded
from minicait.data import Loader, Source, training
from minicait.files.atomic import write_text
from minicait.models import find_model
from minicait.train import Trainer, recipe

STEPS, SKIPPED = 40, 4  # in a turn; the first ones find batches that were prepared during the other's turn


def seconds_per_step(step: Callable[[], object]) -> float:
    for _ in range(SKIPPED):
        step()
    before = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - before) / STEPS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="imagenette", help="(default: %(default)s)")
    parser.add_argument("--model", default="cait_tiny_64", help="(default: %(default)s)")
    parser.add_argument("--recipe", default="small-long", help="(default: %(default)s)")
    parser.add_argument("--keep-side", type=int, default=96, help="of images in memory (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file for the turns (default: none)")
    args = parser.parse_args()
    options.check_positive(args, "turns", "keep_side")
    r, side = recipe(args.recipe), find_model(args.model)[1].img_size[0]
    images = Source(args.data, keep_side=args.keep_side).open(side).train
    for i in range(len(images)):  # read from disk before anything is timed
        images[i]
    loader = Loader(images, r.batch_size, True, r.seed, training(r.augmentation, side), r.repeats)
    batches = (batch for epoch in range(10**6) for batch in loader.epoch(epoch))
    job, bare = (Trainer(create_model(args.model, len(images.classes)), how) for how in (r, None))
    fixed = next(batches)

    def whole() -> None:
        job.step(*job.targets.mixed(next(batches), job.batches))

    rows, ratios = [["bare", "job", "ratio", "waiting"]], []
    for turn in range(args.turns):
        alone = seconds_per_step(lambda: bare.step(*fixed))
        loader.waited = 0.0
        together = seconds_per_step(whole)
        ratios.append(alone / together)
        rates = f"bare step {r.batch_size / alone:.0f} images/s, job {r.batch_size / together:.0f}"
        waiting = loader.waited / (together * (STEPS + SKIPPED))
        rows.append([f"{x:.5g}" for x in (r.batch_size / alone, r.batch_size / together, ratios[-1], waiting)])
        print(f"turn {turn + 1}: {rates}, ratio {ratios[-1]:.3f}, {waiting:.1%} waiting for images", flush=True)
    least, median, most = np.quantile(ratios, (0, 0.5, 1))
    print(f"{args.model}, recipe {args.recipe}: the job has {median:.3f} of the bare step's throughput "
          f"({least:.3f} to {most:.3f})")  # fmt: skip
    if args.out is not None:
        csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
        write_text(args.out, text.getvalue())
    job.close()
    bare.close()
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "measure_job"))
