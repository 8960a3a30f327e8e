"""Measure what the parts of the main job's recipe are worth: change one at a time, and train again.

    python examples/recipe_experiment.py --quick                          # a minute on shapes, to see it work
    python examples/recipe_experiment.py --machine "two cores of a ..."   # docs/results/recipe*.csv, some hours
    python examples/recipe_experiment.py --rows "as it is" "mixup 0.2" --epochs 60

Model and data are those of examples/train_imagenette.py; the recipe is `small`, which that command uses below 100
epochs. Every run has one thread; several run at a time. `accuracy` is that of the averaged weights on the validation
images, `whole` the same without cropping them, and `seen` that on the training images, not augmented: if it is much
higher, the model overfits. In few epochs it does not, so what makes learning harder, such as mixup, pays only in many.

A later command adds runs to the files; runs that they already have are not repeated.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from minicait.cli.guard import guarded
from minicait.data import Loader, Source, evaluation, training
from minicait.experiments.compare import mean_and_spread
from minicait.experiments.results import Results
from minicait.machine import cpu_count
from minicait.models.mimetic import initialise_attention, initialise_other_layers
from minicait.run.plan import Plan
from minicait.train import Trainer, evaluate, recipe
from minicait.train.recipe import with_settings

MODELS = {"imagenette": "cait_tiny_64", "shapes": "cait_tiny_32"}
ROWS: dict[str, str] = {  # settings as for `minicait train --set`, fields of a Plan, or a part of the initial weights
    "as it is": "",
    "initial weights of the reference": "init=reference",
    "only self-attention and positions mimetic": "init=reference start=attention",
    "only the variance of other layers": "init=reference start=other_layers",
    "48 pixels, patches of 6": "img_size=48 patch_size=6",
    "96 pixels, patches of 12": "img_size=96 patch_size=12",
    "lr 0.0005": "lr=0.0005",
    "lr 0.002": "lr=0.002",
    "batches of 32": "batch_size=32",
    "batches of 128": "batch_size=128",
    "crops of 0.08 of the area and more": "crop_scale=0.08",
    "crops of 0.5 of the area and more": "crop_scale=0.5",
    "no label smoothing": "label_smoothing=0",
    "mixup 0.2": "mixup=0.2",
    "mixup 0.8 or cutmix 1": "mixup=0.8 cutmix=1",
    "RandAugment 5": "rand_augment=5",
    "RandAugment 5, mixup 0.2": "rand_augment=5 mixup=0.2",
    "weight decay 0.2": "weight_decay=0.2",
}
STARTS = {"attention": initialise_attention, "other_layers": initialise_other_layers}
EVALUATIONS = 6  # in a run


class Job(NamedTuple):
    data: str
    row: str
    epochs: int
    seed: int


def run(job: Job) -> dict[str, Any]:
    settings = dict(word.split("=") for word in ROWS[job.row].split())
    start = STARTS.get(settings.pop("start", ""))
    sizes: dict[str, Any] = {name: int(settings.pop(name)) for name in ("img_size", "patch_size") if name in settings}
    words = [f"{name}={value}" for name, value in settings.items()]
    r = with_settings(replace(recipe("small"), epochs=job.epochs, seed=job.seed), words)
    source = Source("imagenette", keep_side=96)
    if job.data == "shapes":
        source = Source("shapes", train_images=512, val_images=200)
    plan = Plan(r, source, MODELS[job.data], **sizes)
    side = plan.side()
    images = plan.data.open(side, r.seed, r.crop_ratio)
    model, _ = plan.initial_model(list(images.train.classes))
    if start is not None:
        start(model, r.seed)
    cropped, augmented = evaluation(side, r.crop_ratio), training(r.augmentation, side, r.crop_ratio)
    train_loader = Loader(images.train, r.batch_size, True, r.seed, augmented, threads=1)
    val_loader = Loader(images.val, 64, transform=cropped, threads=1)
    trainer = Trainer(model, r, threads=1)
    epochs = trainer.fit(train_loader, val_loader, evaluate_every=max(1, job.epochs // EVALUATIONS))
    assert trainer.ema is not None
    with trainer.ema.applied():
        seen = evaluate(model, Loader(images.train, 64, transform=cropped, threads=1), threads=1).top1
        uncropped = Loader(plan.data.open(side, r.seed).val, 64, transform=evaluation(side), threads=1)
        whole = evaluate(model, uncropped, threads=1).top1
    curve = [
        {"epoch": e.number, "loss": e.loss, "own": e.scores.top1, "averaged": e.ema_scores.top1}
        for e in epochs
        if e.scores is not None and e.ema_scores is not None
    ]
    return {
        "accuracy": curve[-1]["averaged"], "whole": whole, "seen": seen, "loss": epochs[-1].loss,
        "seconds": sum(e.seconds for e in epochs), "curve": curve,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW",
                        help="(default: all)")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0 (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two rows, one epoch on shapes; writes nothing")
    parser.add_argument("--processes", type=int, default=cpu_count(), help="(default: one per CPU)")
    parser.add_argument("--machine", default="not named", help="description of this machine, for the file")
    parser.add_argument("--out", type=Path, default=Path("docs/results/recipe.csv"), help="(default: %(default)s)")
    args = parser.parse_args()
    if min(args.seeds, args.epochs, args.processes) < 1:
        parser.error("seeds, epochs and processes must be at least 1")
    data = "shapes" if args.quick else "imagenette"
    if args.quick:
        args.seeds, args.epochs, args.rows = 1, 1, args.rows[:2]
    results, start = Results(None if args.quick else args.out), time.perf_counter()
    jobs = {row: [Job(data, row, args.epochs, seed) for seed in range(args.seeds)] for row in args.rows}
    results.run(run, [job for of_row in jobs.values() for job in of_row], args.processes)
    print("\nthe mean over seeds (and the largest minus the smallest)")
    for row, of_row in jobs.items():
        found = [results.of(**job._asdict())[0] for job in of_row]
        mean, spread = mean_and_spread([r["accuracy"] for r in found])
        whole, seen = (mean_and_spread([r[name] for r in found])[0] for name in ("whole", "seen"))
        print(f"{row:36s} {mean:6.1%} ({spread:.1%}), not cropped {whole:.1%}, on training images {seen:.1%}")
    results.note(args.machine, {"model": MODELS[data], "recipe": "small"}, time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "recipe_experiment"))
