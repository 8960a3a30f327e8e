"""Train deep models with several kinds of residual branches, each at several learning rates.

    python examples/depth_experiment.py --quick                          # a minute, to see it work
    python examples/depth_experiment.py --machine "two cores of a ..."   # writes docs/results/depth*.csv
    python examples/depth_experiment.py --residuals layer_scale --starts 0 0.1 1

The paper's Table 1 and Fig. 4 in miniature: images of ten shapes instead of ImageNet, 32 channels instead of 384 (with
initial weights scaled as if they were 384), 600 steps instead of 300 epochs. For each run it saves the accuracy and the
training loss every 50 steps, and at the end the ratio of residual branches to the main path in every block. `fixed` is
re-training with the scales that LayerScale found, which then do not change (section 4.1.2).

A later command adds runs to the files; runs that they already have are not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minicait.data import Shapes
from minicait.data.loader import Batch
from minicait.experiments.compare import Result, as_batch, like_width, mean_and_spread, residual_ratios, train
from minicait.experiments.results import Results
from minicait.models.variants import RESIDUALS, Variant
from minicait.nn import Buffer

SIZES: dict[str, Any] = {"num_classes": 10, "img_size": 16, "patch_size": 4, "dim": 32, "heads": 2}
BATCH, IMAGES, UNSEEN = 32, 2000, 1000  # batch size, training images, validation images
EVERY = 50  # steps between evaluations


class Job(NamedTuple):
    residual: str
    depth: int
    lr: float
    drop_rate: float
    start: float | None  # initial value of LayerScale
    steps: int
    seed: int


def epsilon(depth: int) -> float:
    """Initial value of LayerScale: 0.1 up to depth 18, 1e-5 up to 24, 1e-6 beyond (section 2)."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


def make(residual: str, depth: int, seed: int, start: float | None = None, drop_rate: float = 0.0) -> Variant:
    """Build a model with plain heads, as in Table 1, and the mean of the patches: only the blocks differ."""
    own: dict[str, Any] = {"depth": depth, "layer_scale": epsilon(depth) if start is None else start}
    model = Variant(residual, False, "average", seed=seed, drop_path_rate=drop_rate, **SIZES, **own)
    like_width(model, 384)
    return model


@cache
def data(images: int, seed: int) -> Batch:
    """All images as one batch, drawn once per process."""
    return as_batch(Shapes(images, SIZES["img_size"], seed, "easy"))


def learn(model: Variant, job: Job) -> Result:
    return train(model, data(IMAGES, 0), data(UNSEEN, 1), job.steps, job.lr, BATCH, job.seed, EVERY)


def fix_scales(model: Variant, job: Job) -> None:
    """Train another model with LayerScale, and give this one the other's scales, as constants."""
    other = make("layer_scale", job.depth, job.seed, job.start, job.drop_rate)
    learn(other, job)
    for block, trained in zip(model.blocks, other.blocks, strict=True):
        block.gamma_1, block.gamma_2 = Buffer(trained.gamma_1.numpy()), Buffer(trained.gamma_2.numpy())


def run(job: Job) -> dict[str, Any]:
    form = "layer_scale" if job.residual == "fixed" else job.residual
    model = make(form, job.depth, job.seed, job.start, job.drop_rate)
    if job.residual == "fixed":
        fix_scales(model, job)
    losses, accuracy, curve = learn(model, job)
    overflows = len(losses) < job.steps
    ratios = {} if overflows else residual_ratios(model.eval(), data(UNSEEN, 1).images[:64])
    return {
        "accuracy": accuracy,
        "overflow_at": len(losses) + 1 if overflows else None,
        "steps": [{"step": step, "loss": float(np.mean(losses[max(0, step - EVERY) : step])), "accuracy": share}
                  for step, share in curve],
        "blocks": [{"block": i, "attn": attn, "mlp": mlp}
                   for i, (attn, mlp) in enumerate(zip(*ratios.values(), strict=True))],
    }  # fmt: skip


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Every combination of the options. Only LayerScale, fixed scales and `scalar` have an initial value to choose."""
    jobs = []
    for seed, depth, residual, drop, lr in product(
        range(args.seeds), args.depths, args.residuals, args.drop_rates, args.lrs
    ):
        free = residual in ("layer_scale", "scalar", "fixed")
        for start in (args.starts or [epsilon(depth)]) if free else [None]:
            jobs.append(Job(residual, depth, lr, drop, start, args.steps, seed))
    return jobs


def table(results: Results, jobs: list[Job]) -> None:
    """Print a line per kind of model, a column per learning rate: the mean over seeds, and the spread."""
    rates = sorted({job.lr for job in jobs})
    print("\naccuracy by learning rate, the mean over seeds (and the largest minus the smallest)")
    print(f"{'depth, drop rate, start':>40s}" + "".join(f"{rate:>18g}" for rate in rates))
    for kind in dict.fromkeys(job._replace(lr=0, seed=0) for job in jobs):
        name = f"{kind.residual:12s} {kind.depth}, {kind.drop_rate:g}, {'-' if kind.start is None else kind.start}"
        cells = []
        for rate in rates:
            settings = kind._replace(lr=rate)._asdict()
            del settings["seed"]
            rows = results.of(**settings)
            failed = any(row["overflow_at"] for row in rows)
            mean, spread = mean_and_spread([row["accuracy"] for row in rows]) if rows and not failed else (0, 0)
            cells.append("overflow" if failed else f"{mean:.1%} ({spread:.1%})" if rows else "")
        print(f"{name:>40s}" + "".join(f"{cell:>18s}" for cell in cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*RESIDUALS, "fixed"]
    parser.add_argument("--residuals", nargs="+", choices=names, metavar="NAME",
                        default=["plain", "rezero", "rezero_norm", "layer_scale"],
                        help=f"of {', '.join(names)} (default: %(default)s)")  # fmt: skip
    parser.add_argument("--depths", type=int, nargs="+", default=[36], help="(default: %(default)s)")
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.001, 0.004, 0.012],
                        help="peak learning rates (default: %(default)s)")  # fmt: skip
    parser.add_argument("--drop-rates", type=float, nargs="+", default=[0.0],
                        help="of stochastic depth (default: %(default)s)")  # fmt: skip
    parser.add_argument("--starts", type=float, nargs="+", help="initial values of LayerScale (default: by depth)")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds, from 0 (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="training steps (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="depth 6, one seed, 40 steps; writes nothing")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(default: one per CPU)")
    parser.add_argument("--machine", default="not named", help="description of this machine, for the file")
    parser.add_argument("--out", type=Path, default=Path("docs/results/depth.csv"), help="(default: %(default)s)")
    args = parser.parse_args()
    if args.quick:
        args.depths, args.seeds, args.steps = [6], 1, 40
    if min(*args.depths, args.seeds, args.steps, args.processes) < 1:
        parser.error("depths, seeds, steps and processes must be at least 1")

    results, jobs, start = Results(None if args.quick else args.out), jobs_of(args), time.perf_counter()
    results.run(run, jobs, args.processes)
    table(results, jobs)
    settings = {**SIZES, "batch_size": BATCH, "images": IMAGES, "unseen": UNSEEN}
    results.note(args.machine, settings, time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
