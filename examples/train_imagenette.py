"""Train a CaiT on photographs: Imagenette, ten classes of ImageNet.

    python examples/train_imagenette.py                  # a plan that suits this machine
    python examples/train_imagenette.py --help           # options

On a GPU it trains the paper's CaiT-XXS24 on images of 224 pixels. On a CPU it trains a CaiT of a million parameters on
images of 64 pixels, for as many epochs as fit into 50 minutes. Without a network it trains on shapes that it draws
itself, in a few minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from minicait import create_model
from minicait.cli import options
from minicait.cli.guard import guarded
from minicait.data import Source
from minicait.files.download import UnreachableError
from minicait.run.console import device_line, next_commands
from minicait.run.overview import PAGE
from minicait.run.plan import Plan
from minicait.run.run import new_run
from minicait.train import Trainer, recipe

MINUTES = 50  # limit for training on a CPU; about an hour in all
IMAGES = 9469 + 2 * 0.35 * 3925  # per epoch: training images, and two evaluations at a third of the cost


def plan_photographs(device: str, overrides: dict[str, Any]) -> Plan:
    """A model and a recipe that suit the machine."""
    if device != "cpu":
        chosen = recipe("imagenette").changed(**overrides)
        print(f"plan: cait_xxs24_224 on Imagenette (342 MB, downloaded once), {chosen.epochs} epochs", flush=True)
        return Plan(chosen, Source("imagenette-320"), "cait_xxs24_224")
    rate = images_per_second("cait_tiny_64")
    epochs = overrides["epochs"] or min(40, max(1, int(rate * 60 * MINUTES / IMAGES)))
    chosen = recipe("small").changed(**overrides | {"epochs": epochs})
    minutes = epochs * IMAGES / rate / 60
    print("plan: cait_tiny_64 on Imagenette (99 MB, downloaded once),", end=" ")
    print(f"{epochs} epochs, about {minutes:.0f} minutes at {rate:.0f} images/s", flush=True)
    return Plan(chosen, Source("imagenette", keep_side=96), "cait_tiny_64")


def plan_shapes(overrides: dict[str, Any]) -> Plan:
    chosen = recipe("shapes").changed(**overrides)
    print(f"plan: cait_tiny_32 on shapes that are drawn here, {chosen.epochs} epochs, a few minutes", flush=True)
    return Plan(chosen, Source("shapes"), "cait_tiny_32", patch_size=8)


def images_per_second(name: str) -> float:
    """Training throughput on this machine, the best of three batches."""
    net = create_model(name, num_classes=10)
    trainer = Trainer(net)
    side = net.img_size[0]
    images, labels = np.zeros((64, 3, side, side), np.float32), np.zeros(64, int)
    times = []
    for _ in range(3):
        before = time.perf_counter()
        trainer.step(images, labels)
        times.append(time.perf_counter() - before)
    return len(images) / min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["imagenette", "shapes"], help="(default: imagenette if available)")
    options.add_machine(parser)
    options.add_precision(parser)
    parser.add_argument("--epochs", type=int, help="(default: as many as suit the machine)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs (default: %(default)s)")
    args = parser.parse_args()
    machine = options.machine(args)
    device = machine["device"]
    print(f"device: {device_line(device, args.threads)}", flush=True)
    shapes = args.data == "shapes"
    overrides = {"epochs": args.epochs, "precision": args.precision, "seed": args.seed}
    plan = plan_shapes(overrides) if shapes else plan_photographs(device, overrides)
    try:
        run = new_run(plan, args.out, plan.data.name, **machine)
    except UnreachableError as error:
        if args.data == "imagenette":
            raise
        print(f"\nNO IMAGENETTE: {error}. TRAINING ON SHAPES INSTEAD.\n", flush=True)
        run = new_run(plan_shapes(overrides), args.out, "shapes", **machine)
    run.train()
    print(f"\nCaiT, with its best weights, classified {run.best:.1%} of the validation images correctly.")
    if run.attention_at_start is not None and run.attention_at_end is not None:
        before, after = run.attention_at_start, run.attention_at_end
        print(f"{after:.1%} of its class attention is on the object; before training it was {before:.1%}.")
    print(f"The run, to open in a browser: {run.path / PAGE}; where the model looks: {run.path / 'attention.png'}")
    print(f"What it sees in some images: {' '.join(map(str, run.reports))}")
    print(next_commands(run))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "train_imagenette"))
