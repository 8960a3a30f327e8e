"""Train at several depths, with several kinds of residual branches: how deep can a transformer go?

    python examples/depth_experiment.py --quick                          # a minute, to see it work
    python examples/depth_experiment.py --machine "two cores of a ..."   # writes docs/results/depth.json

The paper's Table 1 and Fig. 4 in miniature: images of ten shapes instead of ImageNet, 32 channels instead of 384 (with
first weights scaled as if they were 384), some hundred steps instead of 300 epochs. For each model it measures how the
gradient passes through the layers at first, what residual branches add to the main path at first and in the end, the
loss, and the accuracy on images that the model has not seen.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minicait.data import Shapes
from minicait.data.loader import Batch
from minicait.experiments.compare import (
    as_batch,
    gradient_flow,
    in_processes,
    like_width,
    mean_and_spread,
    residual_ratios,
    save,
    train,
)
from minicait.models.variants import RESIDUALS, Variant

SIZES: dict[str, Any] = {"num_classes": 10, "img_size": 16, "patch_size": 4, "dim": 32, "heads": 2}
SHOWN = 20  # points of a loss curve
UNSEEN = 1000  # images for the accuracy


class Job(NamedTuple):
    residual: str
    depth: int
    seed: int
    steps: int
    lr: float
    batch_size: int
    images: int


def epsilon(depth: int) -> float:
    """Initial value of LayerScale: 0.1 up to depth 18, 1e-5 up to 24, 1e-6 beyond (section 2)."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


def make(residual: str, depth: int, seed: int) -> Variant:
    """A model with plain heads, as in Table 1, and the mean of the patches: only the blocks differ."""
    of_depth: dict[str, Any] = {"depth": depth, "layer_scale": epsilon(depth)}
    model = Variant(residual, talking_heads=False, pooling="average", seed=seed, **SIZES, **of_depth)
    like_width(model, 384)
    return model


@cache
def data(images: int, seed: int) -> Batch:
    """All images as one batch, drawn once per process."""
    return as_batch(Shapes(images, SIZES["img_size"], seed, "easy"))


def run(job: Job) -> dict[str, Any]:
    seen, unseen = data(job.images, 0), data(UNSEEN, 1)
    model = make(job.residual, job.depth, job.seed)
    some = unseen.images[:64], unseen.labels[:64]
    flow, before = gradient_flow(model, *some), residual_ratios(model, some[0])
    losses, accuracy = train(model, seen, unseen, job.steps, job.lr, job.batch_size, job.seed)
    part = -(-len(losses) // SHOWN)
    return {
        "residual": job.residual, "depth": job.depth, "seed": job.seed, "accuracy": accuracy,
        "loss": [float(np.mean(losses[i : i + part])) for i in range(0, len(losses), part)],
        "gradient_at_first": flow, "ratio_at_first": before, "ratio": residual_ratios(model, some[0]),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 12, 24, 36], help="(default: %(default)s)")
    parser.add_argument("--residuals", nargs="+", choices=RESIDUALS, metavar="NAME",
                        default=["plain", "rezero_norm", "layer_scale"],
                        help=f"of {', '.join(RESIDUALS)} (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--images", type=int, default=2000, help="training images (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="depths 6 and 12, one seed, 40 steps; writes nothing")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(default: one per CPU)")
    parser.add_argument("--machine", default="not named", help="description of this machine, for the file")
    parser.add_argument("--out", type=Path, default=Path("docs/results/depth.json"), help="(default: %(default)s)")
    args = parser.parse_args()
    if args.quick:
        args.depths, args.seeds, args.steps, args.images = [6, 12], 1, 40, 500
    if min(*args.depths, args.seeds, args.steps, args.images, args.batch_size, args.processes) < 1:
        parser.error("depths, seeds, steps, images, batch size and processes must be at least 1")

    each = args.steps, args.lr, args.batch_size, args.images
    jobs = [Job(r, d, s, *each) for s in range(args.seeds) for d in sorted(args.depths, reverse=True)
            for r in args.residuals]  # fmt: skip
    print(f"{len(jobs)} trainings of {args.steps} steps, {args.processes} at a time", flush=True)
    results: dict[int, dict[str, Any]] = {}
    start = time.perf_counter()
    for i, result in in_processes(run, jobs, args.processes):
        results[i] = result
        print(f"{len(results):3d}/{len(jobs)}  {time.perf_counter() - start:4.0f} s  {jobs[i].residual:12s} "
              f"depth {jobs[i].depth:2d}, seed {jobs[i].seed}: loss {result['loss'][-1]:.3f}, "
              f"accuracy {result['accuracy']:.1%}", flush=True)  # fmt: skip
    print("\naccuracy, the mean over seeds (and the largest minus the smallest)")
    print(f"{'depth':>6s}" + "".join(f"{name:>18s}" for name in args.residuals))
    for depth in args.depths:
        cells = []
        for name in args.residuals:
            mean, spread = mean_and_spread([r["accuracy"] for r in results.values()
                                            if (r["residual"], r["depth"]) == (name, depth)])  # fmt: skip
            cells.append(f"{mean:.1%} ({spread:.1%})")
        print(f"{depth:6d}" + "".join(f"{cell:>18s}" for cell in cells))
    if not args.quick:
        settings = {**SIZES, "steps": args.steps, "lr": args.lr, "batch_size": args.batch_size, "images": args.images}
        command = shlex.join(["python", "examples/depth_experiment.py", *sys.argv[1:]])
        save(args.out, command, args.machine, settings, [results[i] for i in range(len(jobs))])
        print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
