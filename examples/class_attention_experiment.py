"""Compare sources of the class: class attention, a class token among the patches, or the mean of the patches.

    python examples/class_attention_experiment.py --quick                          # a minute, to see it work
    python examples/class_attention_experiment.py --machine "two cores of a ..."   # docs/results/class_attention*.csv
    python examples/class_attention_experiment.py --data imagenette --steps 3000 --lr 0.001

The paper's Table 2 in miniature, like it without LayerScale and with plain heads: 6 layers instead of 12, initial
weights scaled as if there were 384 channels. Images of ten shapes at 24 pixels, 32 channels; or Imagenette at 64
pixels, 96 channels. For each model it measures the validation accuracy, and for shapes the share of the class token's
attention that falls on the object, in every layer with a class token.

A later command adds runs to the files; runs that they already have are not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import minicait
from minicait.data import Augmentation, Loader, Shapes, Source, evaluation, training
from minicait.data.loader import Batch
from minicait.experiments.compare import as_batch, like_width, mean_and_spread, random_batches, train
from minicait.experiments.results import Results
from minicait.machine import blas_threads
from minicait.models.variants import Variant

SIZES: dict[str, dict[str, Any]] = {
    "shapes": {"num_classes": 10, "img_size": 24, "patch_size": 4, "dim": 32, "heads": 2},
    "imagenette": {"num_classes": 10, "img_size": 64, "patch_size": 8, "dim": 96, "heads": 2},
}
BATCH, IMAGES, UNSEEN = 32, 2000, 1000  # batch size; shapes for training and for validation
LOOKED_AT = 200  # validation images on which attention is measured
# layers of self-attention + of class attention; a layer has as many parameters in either stage
ROWS: dict[str, dict[str, Any]] = {
    "6 + 0, token from 0": {"depth": 6, "pooling": "class_token"},
    "6 + 0, token from 0, masked": {"depth": 6, "pooling": "class_token", "masked": True},
    "6 + 0, token from 4": {"depth": 6, "pooling": "class_token", "insert_at": 4},
    "6 + 0, token from 4, masked": {"depth": 6, "pooling": "class_token", "insert_at": 4, "masked": True},
    "6 + 0, average": {"depth": 6, "pooling": "average"},
    "4 + 2": {"depth": 4, "depth_token_only": 2},
    "8 + 0, token from 0": {"depth": 8, "pooling": "class_token"},
    "8 + 0, average": {"depth": 8, "pooling": "average"},
    "6 + 2": {"depth": 6, "depth_token_only": 2},
    "6 + 2, talking heads": {"depth": 6, "depth_token_only": 2, "talking_heads": True},
}


class Job(NamedTuple):
    data: str
    row: str
    lr: float
    steps: int
    seed: int


def make(row: str, seed: int, data: str = "shapes") -> Variant:
    model = Variant("plain", seed=seed, **{"talking_heads": False, **SIZES[data], **ROWS[row]})
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
def drawn(images: int, seed: int) -> tuple[Shapes, Batch]:
    """Shapes and all their images as one batch, drawn once per process."""
    shapes = Shapes(images, SIZES["shapes"]["img_size"], seed, "easy")
    return shapes, as_batch(shapes)


@cache
def photographs() -> tuple[Any, Batch]:
    """The training images of Imagenette, in memory, and all validation images as one batch."""
    side = SIZES["imagenette"]["img_size"]
    images = Source("imagenette", keep_side=96).open(side)
    (unseen,) = Loader(images.val, len(images.val), transform=evaluation(side), threads=1)
    return images.train, unseen


def crops(seed: int) -> Iterator[Batch]:
    """Batches of random crops of Imagenette, half of them mirrored."""
    transform = training(Augmentation("resized", 0.35, flip=0.5), SIZES["imagenette"]["img_size"])
    loader = Loader(photographs()[0], BATCH, True, seed, transform, threads=1)
    for epoch in count():
        yield from loader.epoch(epoch)


def run(job: Job) -> dict[str, Any]:
    model = make(job.row, job.seed, job.data)
    shapes, unseen = drawn(UNSEEN, 1) if job.data == "shapes" else photographs()
    batches = random_batches(drawn(IMAGES, 0)[1], BATCH, job.seed) if job.data == "shapes" else crops(job.seed)
    losses, accuracy, _ = train(model, batches, unseen, job.steps, job.lr, BATCH, job.seed)
    inside = shares(model, shapes, unseen.images[:LOOKED_AT]) if job.data == "shapes" else {}
    return {
        "accuracy": accuracy, "loss": float(np.mean(losses[-len(losses) // 10 :])),
        "parameters": model.parameter_count(),
        "layers": [{"layer": name, "on_object": share} for name, share in inside.items()],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(SIZES), default="shapes", help="(default: %(default)s)")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW",
                        help="(default: all)")  # fmt: skip
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="training steps (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one seed, 40 steps; writes nothing")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(default: one per CPU)")
    parser.add_argument("--machine", default="not named", help="description of this machine, for the file")
    parser.add_argument("--out", type=Path, default=Path("docs/results/class_attention.csv"),
                        help="(default: %(default)s)")  # fmt: skip
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.steps = 1, 40
    if min(args.seeds, args.steps, args.processes) < 1:
        parser.error("seeds, steps and processes must be at least 1")

    results, start = Results(None if args.quick else args.out), time.perf_counter()
    jobs = [Job(args.data, row, args.lr, args.steps, seed) for seed in range(args.seeds) for row in args.rows]
    results.run(run, jobs, args.processes)
    print("\nthe mean over seeds (and the largest minus the smallest)")
    for row in args.rows:
        found = results.of(data=args.data, row=row, lr=args.lr, steps=args.steps)
        mean, spread = mean_and_spread([r["accuracy"] for r in found])
        print(f"{row:30s} {found[0]['parameters']:9,d} parameters {mean:7.1%} ({spread:.1%})")
    object_share = float(covered(drawn(UNSEEN, 1)[0], LOOKED_AT, SIZES["shapes"]["patch_size"]).mean())
    settings = {**SIZES, "batch_size": BATCH, "images": IMAGES, "unseen": UNSEEN, "object": object_share}
    results.note(args.machine, settings, time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
