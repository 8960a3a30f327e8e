"""Train a CaiT on photographs: Imagenette, ten classes of ImageNet.

    python examples/train_imagenette.py                  # a plan that suits this machine
    python examples/train_imagenette.py --help           # options

On a GPU it trains the paper's CaiT-XXS24 on images of 224 pixels. On a CPU it trains a CaiT of a million parameters on
images of 64 pixels, for as many epochs as fit into an hour. Without a network it trains on shapes that it draws itself,
in a few minutes. Other subsets of ImageNet are a folder and some of its classes:

    python examples/train_imagenette.py --data path/to/imagenet --classes n01440764,n02102040,n02979186

With a teacher, half of the loss compares predictions with the teacher's. This one has learned from all of ImageNet:

    python examples/train_imagenette.py --teacher deit_tiny_patch16_224

Several machines, or several processes on one, train together through MPI; docs/ranks.md has more:

    mpiexec -n 4 python -m mpi4py examples/train_imagenette.py
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minicait import create_model
from minicait.cli import options
from minicait.cli.guard import guarded
from minicait.data import Source
from minicait.files.download import UnreachableError
from minicait.files.pretrained import open_pretrained
from minicait.models import find_model
from minicait.run.console import next_commands
from minicait.run.overview import PAGE
from minicait.run.plan import Plan, absolute
from minicait.run.start import new_run
from minicait.train import Ranks, Trainer, recipe
from minicait.train.ranks import ALONE

MINUTES = 58  # for training and evaluation on a CPU: an hour in all
MOST = 150  # epochs: a faster machine is done earlier
MODEL = "cait_tiny_64"  # on a CPU
LONG = 100  # epochs in which the model would learn the images by heart
SHARE = 0.85  # of that time in training steps: the rest is data augmentation, mixing, and evaluation
IMAGES, MEGABYTES = 9469, {"imagenette": 99, "imagenette-320": 342}


def plan_photographs(
    data: Source,
    device: str,
    overrides: dict[str, Any],
    threads: int | None = None,
    teacher: str | None = None,
    ranks: Ranks = ALONE,
) -> Plan:
    """A model and a recipe that suit the machine."""
    data = replace(data, data="imagenette-320") if device != "cpu" and data.data == "imagenette" else data
    name = f"Imagenette ({MEGABYTES[data.data]} MB, downloaded once)" if data.data in MEGABYTES else data.name
    if device != "cpu":
        chosen = recipe("imagenette").changed(**overrides)
        print(f"plan: cait_xxs24_224 on {name}, {chosen.epochs} epochs", flush=True)
        return Plan(chosen, data, "cait_xxs24_224", teacher=teacher)
    data = replace(data, keep_side=96)
    known = data.data == "imagenette" and data.classes is None
    count = IMAGES if known else len(ranks.staggered(lambda: data.open(find_model(MODEL)[1].img_size[0])).train)
    rate = ranks.size * SHARE * images_per_second(MODEL, threads) * (1 if teacher is None else share_beside(teacher))
    most = max(1, min(MOST, int(rate * 60 * MINUTES / count)))
    epochs = most if overrides["epochs"] is None else overrides["epochs"]
    chosen = recipe("small-long" if epochs >= LONG else "small").changed(**overrides).changed(epochs=epochs)
    minutes = chosen.epochs * count / rate / 60
    print(f"plan: {MODEL} on {name}, {chosen.epochs} epochs, about {minutes:.0f} minutes", flush=True)
    return Plan(chosen, data, MODEL, teacher=teacher)


def plan_shapes(data: Source, overrides: dict[str, Any], teacher: str | None = None) -> Plan:
    chosen = recipe("shapes").changed(**overrides)
    print(f"plan: cait_tiny_32 on shapes that are drawn here, {chosen.epochs} epochs, a few minutes", flush=True)
    return Plan(chosen, data, "cait_tiny_32", teacher=teacher)


def images_per_second(name: str, threads: int | None = None) -> float:
    """Training throughput on this machine, the best of three batches."""
    net = create_model(name, num_classes=10)
    trainer = Trainer(net, threads=threads)
    side = net.img_size[0]
    images, labels = np.zeros((64, 3, side, side), np.float32), np.zeros(64, int)
    times = []
    for _ in range(3):
        before = time.perf_counter()
        trainer.step(images, labels)
        times.append(time.perf_counter() - before)
    return len(images) / min(times)


def share_beside(teacher: str) -> float:
    """Share of the time that is left to the student, by the operations of both: it also goes backward."""
    student = 3 * find_model(MODEL)[1].cost().multiply_adds
    return student / (student + open_pretrained(teacher)[1].config.cost().multiply_adds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="imagenette, shapes, or a folder (default: imagenette if available)")
    options.add_classes(parser)
    parser.add_argument("--teacher", help="distil this model: a file, or published weights (default: none)")
    options.add_machine(parser)
    options.add_precision(parser)
    parser.add_argument("--epochs", type=int, help="(default: as many as suit the machine)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs (default: %(default)s)")
    args = parser.parse_args()
    machine = options.machine(args)
    teacher = absolute(args.teacher)
    overrides = {"epochs": args.epochs, "precision": args.precision, "seed": args.seed,
                 "distillation": None if teacher is None else "hard"}  # fmt: skip
    data = Source(args.data or "imagenette", classes=options.class_list(args.classes))
    try:
        if data.data == "shapes":
            plan = plan_shapes(data, overrides, teacher)
        else:
            ranks = machine.get("ranks", ALONE)
            plan = plan_photographs(data, machine["device"], overrides, machine["threads"], teacher, ranks)
        run = new_run(plan, args.out, plan.data.name, **machine)
    except UnreachableError as error:
        if any(option is not None for option in (args.data, args.classes, teacher)):
            raise
        print(f"\nNO IMAGENETTE: {error}. TRAINING ON SHAPES INSTEAD.\n", flush=True)
        run = new_run(plan_shapes(Source("shapes"), overrides), args.out, "shapes", **machine)
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
