"""Train some hundred steps on any number of ranks, and print their throughput, their traffic, and the weights' SHA-256.

    python examples/measure_ranks.py --threads 2
    mpiexec -n 2 python -m mpi4py examples/measure_ranks.py --threads 1

The hash must be the same, whatever the number of ranks, threads and hosts. Mixup, cutmix, stochastic depth, clipping
and the average of the weights take part. Shapes are drawn before anything is timed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from contextlib import suppress

from minicait import create_model
from minicait.cli import options
from minicait.cli.guard import guarded
from minicait.data import Loader, Source
from minicait.data.loader import InMemory
from minicait.train import Trainer, recipe
from minicait.train.job import world
from minicait.train.mpi import MPIRanks
from minicait.train.ranks import ALONE, Ranks

IMAGES = 2560
SKIPPED = 5  # steps before the clock starts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cait_tiny_32", help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of each rank (default: its share of the CPUs)")
    args = parser.parse_args()
    options.check_positive(args, "batch_size", "threads")
    if args.batch_size > IMAGES or args.steps <= SKIPPED:
        raise ValueError(f"--batch-size must be at most {IMAGES}, and --steps more than {SKIPPED}")
    ranks: Ranks = world() or ALONE
    threads = args.threads or (ranks.threads if isinstance(ranks, MPIRanks) else None)
    model = create_model(args.model, 10, drop_path_rate=0.1)
    images = InMemory(Source("shapes", train_images=IMAGES).open(model.img_size[0]).train)
    for i in range(len(images)):
        images[i]
    epochs = -(-args.steps // (IMAGES // args.batch_size))
    how = recipe("shapes").changed(epochs=epochs, batch_size=args.batch_size, mixup=0.8, cutmix=1.0)
    trainer = Trainer(model, how, threads=threads, ranks=ranks)
    loader = Loader(images, args.batch_size, True, threads=threads)
    times: list[float] = []

    class EnoughError(Exception):
        pass

    def after_batch(loss: float) -> None:
        times.append(time.perf_counter())
        if len(times) == args.steps:
            raise EnoughError

    with suppress(EnoughError):
        trainer.fit(loader, Loader(images, 64, threads=threads), after_batch, evaluate_every=epochs)
    assert trainer.ema is not None
    digest = hashlib.sha256()
    for flat in (trainer.optimiser.parameters.weights, trainer.optimiser.square, trainer.ema.average):
        digest.update(flat.array)
    rate = args.batch_size * (len(times) - SKIPPED) / (times[-1] - times[SKIPPED - 1])
    print(f"{ranks.size} ranks, {threads or 'all'} threads each: {len(times)} steps, {rate:.0f} images/s")
    if isinstance(ranks, MPIRanks) and ranks.size > 1:
        ideal = 2 * trainer.optimiser.parameters.array.nbytes * (ranks.size - 1) / ranks.size
        sent, whole = ranks.bytes_sent / ranks.sums, times[-1] - times[0]
        print(f"{ranks.seconds / whole:.1%} of the time on the network, {ranks.waited / whole:.1%} waiting for others")
        print(
            f"{sent / 1e6:.2f} MB sent by rank 0 in a step; gradients are {ideal / 1e6:.2f}, the rest is mostly mixing"
        )
    print(f"SHA-256 {digest.hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "measure_ranks"))
