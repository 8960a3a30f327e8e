"""Compare three sources of the class: class attention, a class token among the patches, or the mean of the patches.

    python examples/class_attention_experiment.py --quick                          # a minute, to see it work
    python examples/class_attention_experiment.py --machine "two cores of a ..."   # docs/results/class_attention.json

The paper's Table 2 in miniature, like it without LayerScale and with plain heads: images of ten shapes at 24 pixels,
6 layers instead of 12, 32 channels instead of 384 (with initial weights scaled as if they were 384), a few hundred
steps. For each model it measures the validation accuracy, and the share of the class token's attention that falls on
the object, in every layer with a class token.
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

import autograd as ag
import minicait
from minicait.data import Shapes
from minicait.data.loader import Batch
from minicait.experiments.compare import as_batch, in_processes, like_width, mean_and_spread, save, train
from minicait.machine import blas_threads
from minicait.models.variants import Variant

SIZES: dict[str, Any] = {"num_classes": 10, "img_size": 24, "patch_size": 4, "dim": 32, "heads": 2}
UNSEEN = 1000  # images for the accuracy
LOOKED_AT = 200  # of them, on which attention is measured
ROWS: dict[str, dict[str, Any]] = {  # of the table: layers of self-attention + of class attention
    "6 + 0, token from 0": {"depth": 6, "pooling": "class_token", "insert_at": 0},
    "6 + 0, token from 2": {"depth": 6, "pooling": "class_token", "insert_at": 2},
    "6 + 0, token from 4": {"depth": 6, "pooling": "class_token", "insert_at": 4},
    "6 + 0, average": {"depth": 6, "pooling": "average"},
    "4 + 2": {"depth": 4, "depth_token_only": 2},
    "6 + 1": {"depth": 6, "depth_token_only": 1},
    "6 + 2": {"depth": 6, "depth_token_only": 2},
}


class Job(NamedTuple):
    row: str
    seed: int
    steps: int
    lr: float
    batch_size: int
    images: int
    talking_heads: bool = False


def make(row: str, seed: int, talking_heads: bool = False) -> Variant:
    model = Variant("plain", talking_heads=talking_heads, seed=seed, **{**SIZES, **ROWS[row]})
    like_width(model, 384)
    return model


def covered(shapes: Shapes, count: int, patch: int) -> np.ndarray:
    """Share of each patch that the object covers, (count, patches)."""
    masks = np.stack([shapes.mask(i) for i in range(count)]).astype(np.float64)
    side = shapes.size // patch
    return masks.reshape(count, side, patch, side, patch).mean(axis=(2, 4)).reshape(count, -1)


def looks(model: Variant, images: np.ndarray) -> dict[str, np.ndarray]:
    """Attention of the class token to each patch, the mean over heads: (B, patches) by layer."""
    with ag.no_grad(), blas_threads(1), minicait.record(model) as inside:
        model(images)
    maps = {name: m.before for name, m in inside.attention.items() if m.before.shape[-1] > model.pos_embed.shape[1]}
    return {name: m[:, :, 0, 1:].mean(axis=1) for name, m in (maps | inside.class_attention).items()}


def shares(model: Variant, shapes: Shapes, images: np.ndarray) -> dict[str, float]:
    """Share of this attention that falls on the object, by layer, as in minicait.train.attention_inside."""
    on_object = covered(shapes, len(images), model.config.patch_size)
    return {name: float(((a * on_object).sum(1) / a.sum(1)).mean()) for name, a in looks(model, images).items()}


@cache
def data(images: int, seed: int) -> tuple[Shapes, Batch]:
    """Shapes and all their images as one batch, drawn once per process."""
    shapes = Shapes(images, SIZES["img_size"], seed, "easy")
    return shapes, as_batch(shapes)


def run(job: Job) -> dict[str, Any]:
    (_, seen), (shapes, unseen) = data(job.images, 0), data(UNSEEN, 1)
    model = make(job.row, job.seed, job.talking_heads)
    losses, accuracy = train(model, seen, unseen, job.steps, job.lr, job.batch_size, job.seed)
    return {
        "row": job.row, "seed": job.seed, "accuracy": accuracy, "loss": float(np.mean(losses[-len(losses) // 10 :])),
        "inside": shares(model, shapes, unseen.images[:LOOKED_AT]), "parameters": model.parameter_count(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--images", type=int, default=2000, help="training images (default: %(default)s)")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW",
                        help="(default: all)")  # fmt: skip
    parser.add_argument("--talking-heads", action="store_true", help="mix the heads of self-attention, as CaiT does")
    parser.add_argument("--quick", action="store_true", help="one seed, 40 steps; writes nothing")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(default: one per CPU)")
    parser.add_argument("--machine", default="not named", help="description of this machine, for the file")
    parser.add_argument("--out", type=Path, default=Path("docs/results/class_attention.json"),
                        help="(default: %(default)s)")  # fmt: skip
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.steps, args.images = 1, 40, 500
    if min(args.seeds, args.steps, args.images, args.batch_size, args.processes) < 1:
        parser.error("seeds, steps, images, batch size and processes must be at least 1")

    each = args.steps, args.lr, args.batch_size, args.images, args.talking_heads
    jobs = [Job(row, seed, *each) for seed in range(args.seeds) for row in args.rows]
    print(f"{len(jobs)} trainings of {args.steps} steps, {args.processes} at a time", flush=True)
    results: dict[int, dict[str, Any]] = {}
    start = time.perf_counter()
    for i, result in in_processes(run, jobs, args.processes):
        results[i] = result
        print(f"{len(results):3d}/{len(jobs)} {time.perf_counter() - start:5.0f} s  {jobs[i].row:20s} seed "
              f"{jobs[i].seed}: loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}", flush=True)  # fmt: skip
    shapes = Shapes(UNSEEN, SIZES["img_size"], 1, "easy")
    object_share = float(covered(shapes, LOOKED_AT, SIZES["patch_size"]).mean())
    print(f"\nthe mean over seeds (and the largest minus the smallest); the object is {object_share:.0%} of an image")
    print(f"{'SA + CA':20s} {'accuracy':>16s} {'on the object':>16s}   in the layer with most of it")
    for row in args.rows:
        of_row = [r for r in results.values() if r["row"] == row]
        columns = [[r["accuracy"] for r in of_row], [max(r["inside"].values(), default=np.nan) for r in of_row]]
        cells = ["{:.1%} ({:.1%})".format(*mean_and_spread(values)) for values in columns]
        print(f"{row:20s} {cells[0]:>16s} {cells[1] if of_row[0]['inside'] else '':>16s}")
    if not args.quick:
        settings = {**SIZES, "steps": args.steps, "lr": args.lr, "batch_size": args.batch_size, "images": args.images,
                    "object": object_share, "talking_heads": args.talking_heads}  # fmt: skip
        command = shlex.join(["python", "examples/class_attention_experiment.py", *sys.argv[1:]])
        save(args.out, command, args.machine, settings, [results[i] for i in range(len(jobs))])
        print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
