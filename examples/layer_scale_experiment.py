"""Record the scales of LayerScale while a deep model trains.

    python examples/layer_scale_experiment.py --quick                          # seconds, to see it work
    python examples/layer_scale_experiment.py --machine "two cores of a ..."   # writes docs/results/layer_scale*.csv

The run is one of examples/depth_experiment.py, LayerScale at its best learning rate: 36 layers of 32 channels, 600
steps on images of ten shapes. layer_scale_scales.csv has the mean of |λ| over the channels, for both branches of every
block, at about twenty steps, most of them early, when the scales grow fastest.

A later command adds runs to the files; runs that they already have are not repeated.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minicait.data.loader import Batch
from minicait.experiments.compare import random_batches, train
from minicait.experiments.results import Results

DEEP = runpy.run_path(str(Path(__file__).with_name("depth_experiment.py")))  # its model, data and sizes
IMAGES, UNSEEN, BATCH = DEEP["IMAGES"], DEEP["UNSEEN"], DEEP["BATCH"]


class Job(NamedTuple):
    depth: int
    lr: float
    start: float  # initial value of LayerScale
    steps: int
    seed: int


def recorded(steps: int, count: int = 20) -> list[int]:
    """Return about `count` steps from 0 to `steps`, denser at the start."""
    return sorted({round(steps * (i / count) ** 3) for i in range(count + 1)})


def run(job: Job) -> dict[str, Any]:
    seen, unseen = DEEP["data"](IMAGES, 0), DEEP["data"](UNSEEN, 1)
    model = DEEP["make"]("layer_scale", job.depth, job.seed, job.start)
    at = recorded(job.steps)
    rows: list[dict[str, Any]] = []

    def record(step: int) -> None:
        for i, block in enumerate(model.blocks):
            attn, mlp = (float(f"{np.abs(s.numpy()).mean():.3g}") for s in (block.gamma_1, block.gamma_2))
            rows.append({"step": step, "block": i, "attn": attn, "mlp": mlp})

    def observed(batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, and record before each step that is to be recorded."""
        for step, batch in enumerate(batches):
            if step in at:
                record(step)
            yield batch

    batches = observed(random_batches(seen, BATCH, job.seed))
    result = train(model, batches, unseen, job.steps, job.lr, BATCH, job.seed)
    record(job.steps)
    return {"accuracy": result.accuracy, "scales": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=36, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.012, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--start", type=float, default=1e-6,
                        help="initial value of LayerScale (default: %(default)s)")  # fmt: skip
    parser.add_argument("--steps", type=int, default=600, help="training steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="depth 4, 20 steps; writes nothing")
    parser.add_argument("--machine", default="not named", help="description of this machine, for the file")
    parser.add_argument("--out", type=Path, default=Path("docs/results/layer_scale.csv"),
                        help="(default: %(default)s)")  # fmt: skip
    args = parser.parse_args()
    if args.quick:
        args.depth, args.steps = 4, 20
    if min(args.depth, args.steps) < 1:
        parser.error("depth and steps must be at least 1")

    results, start = Results(None if args.quick else args.out), time.perf_counter()
    job = Job(args.depth, args.lr, args.start, args.steps, args.seed)
    results.run(run, [job], processes=1)
    settings = {**DEEP["SIZES"], "batch_size": BATCH, "images": IMAGES, "unseen": UNSEEN}
    results.note(args.machine, settings, time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
