"""minicait train: plan a run from the options, and let it go."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.source import NAMED
from ..data.transforms import Augmentation
from ..models import FAMILIES, Config, find_model, list_models
from ..run.console import next_commands
from ..run.plan import Plan, absolute
from ..run.run import new_run, resumed, summary
from ..train.recipe import RECIPES, recipe, with_settings
from . import options

EXAMPLES = """examples:
  minicait train --data photos                      the tiny preset on your own images
  minicait train --data photos --weights cait_xxs24_224 --recipe transfer       start from published weights
  minicait train --data imagenette --preset small --img-size 64 --epochs 20
  minicait train --resume runs/photos-tiny-1        go on where a run stopped
"""

# options that are part of a run's plan, which a resumed run has already
PLANNED = (
    "preset", "img_size", "patch_size", "weights", "teacher", "data", "difficulty", "train_images", "val_images",
    "val_fraction", "keep_side", "recipe", "epochs", "batch_size", "lr", "precision", "set", "seed", "out", "runs",
    "smoke", "overfit_one_batch",
)  # fmt: skip


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("train", help="train a model", epilog=EXAMPLES, formatter_class=raw)
    what = parser.add_argument_group("what to train")
    sizes = "tiny, small, xxs24, ...: see `minicait models` (default: %(default)s)"
    what.add_argument("--preset", default="tiny", help=sizes)
    what.add_argument("--img-size", type=int, help="side of the images in pixels (default: the preset's)")
    patches = "side of the patches (default: the preset's; an eighth of --img-size; for shapes a quarter)"
    what.add_argument("--patch-size", type=int, help=patches)
    what.add_argument("--weights", help="start from this file, or from a published model such as cait_xxs24_224")
    what.add_argument("--teacher", help="distil: learn from the model in this file as well")
    data = parser.add_argument_group("data")
    options.add_data(data, "shapes")
    data.add_argument("--train-images", type=int, metavar="N", help="use so many (default: all; of shapes, 6000)")
    how = parser.add_argument_group("recipe")
    how.add_argument("--recipe", help=f"{', '.join(RECIPES)} (default: what suits the data and the preset)")
    how.add_argument("--epochs", type=int, help="times through the training images (default: the recipe's)")
    how.add_argument("--batch-size", type=int, help="images that make a step (default: the recipe's)")
    how.add_argument("--lr", type=float, help="learning rate at its peak (default: the recipe's)")
    options.add_precision(how)
    how.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                     help="anything else in the recipe: mixup=0.2, crop=padded, colour_jitter=0.3, ...")  # fmt: skip
    how.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=Path, default=Path("runs"), help="where its folder is made (default: %(default)s)")
    run.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a run, to the bit")
    options.add_machine(run)
    often = "write a checkpoint every N batches (default: %(default)s)"
    run.add_argument("--checkpoint-batches", type=int, default=100, metavar="N", help=often)
    run.add_argument(
        "--runs", type=int, default=1, metavar="N", help="with N seeds, of data and weights: mean and deviation"
    )
    run.add_argument("--smoke", action="store_true", help="a few seconds, to see that everything works")
    run.add_argument("--overfit-one-batch", action="store_true", help="learn one batch by heart, as a check")
    parser.set_defaults(run=_train, defaults={name: parser.get_default(name) for name in PLANNED})


def _train(args: argparse.Namespace) -> int:
    for name in ("runs", "checkpoint_batches", "img_size", "patch_size"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    machine = {**options.machine(args), "checkpoint_batches": args.checkpoint_batches}
    given = [name for name in PLANNED if getattr(args, name) != args.defaults[name]]
    if args.resume is not None and given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"--resume goes on with a run as it was planned; leave out {named}")
    scores = []
    for number in range(args.runs):
        if args.resume is not None:
            run = resumed(args.resume, **machine)
        else:
            plan = _plan(args, args.seed + number)
            kind = args.preset if args.weights is None else "from-weights"
            run = new_run(plan, args.out, f"{plan.data.name}-{kind}", **machine)
        last = run.go()
        scores.append(last.score)
        if args.overfit_one_batch:
            print("the batch is learned by heart" if last.top1 == 1 else f"of the batch, {last.top1:.0%} is learned")
        print(f"best weights: {run.best_weights}, top-1 {run.best:.1%}")
        pictures = [run.path / name for name in ("curves.svg", "attention.png") if (run.path / name).is_file()]
        print(f"see {' and '.join(map(str, pictures))}")
        if run.reports:
            print(f"what it sees in some images, to be opened in a browser: {' '.join(map(str, run.reports))}")
        if run.signals.asked is not None and number + 1 < args.runs:
            print(f"stopped after {number + 1} of {args.runs} runs: {summary(scores)}")
            return 128 + run.signals.asked
    print(next_commands(run))
    print(f"top-1: {summary(scores)}")
    return 0


def _plan(args: argparse.Namespace, seed: int) -> Plan:
    """What the options ask for."""
    if args.smoke and args.overfit_one_batch:
        raise ValueError("choose one of --smoke and --overfit-one-batch")
    if args.weights is not None and (args.preset != args.defaults["preset"] or args.patch_size is not None):
        raise ValueError("--weights decides the model; leave out --preset and --patch-size")
    model = _model_name(args.preset, args.data)
    config, patch = find_model(model)[1], args.patch_size
    scales = args.weights is None and config.img_size[0] == 8 * config.patch_size  # a preset for small images
    if scales and patch is None and (args.data == "shapes" or args.img_size is not None):
        side, across = args.img_size or config.img_size[0], 4 if args.data == "shapes" else 8
        if side % across:
            raise ValueError(
                f"--img-size {side} is no multiple of {across}, the patches across; or choose --patch-size"
            )
        patch = side // across
    chosen = recipe(args.recipe or _recipe_name(args, config))
    asked = {"epochs": args.epochs, "batch_size": args.batch_size}
    chosen = with_settings(chosen.changed(**asked, lr=args.lr, precision=args.precision, seed=seed), args.set)
    if args.teacher is not None and chosen.distillation is None:
        chosen = chosen.changed(distillation="hard")
    data = options.source(args, train_images=args.train_images)
    if data.data not in NAMED:
        data = replace(data, data=str(Path(data.data).resolve()))  # so that a run can be resumed from anywhere
    if args.smoke:
        few = {"epochs": 2, "batch_size": 8} | {k: v for k, v in asked.items() if v is not None}
        chosen = chosen.changed(**few)
        data = replace(data, train_images=4 * chosen.batch_size, val_images=20)
    if args.overfit_one_batch:
        plain = {"label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0, "weight_decay": 0.0, "constant_lr": True}
        chosen = chosen.changed(epochs=60, augmentation=Augmentation(), repeats=1, **plain).changed(**asked)
        data = replace(data, train_images=chosen.batch_size)
    weights, teacher = absolute(args.weights), absolute(args.teacher)
    return Plan(chosen, data, model, args.img_size, patch, weights, teacher, args.overfit_one_batch)


def _model_name(short: str, data: str) -> str:
    """tiny is cait_tiny_32 on shapes and cait_tiny_64 on photographs; xxs24 is cait_xxs24_224."""
    families = ("", *(f"{family.name}_" for family in FAMILIES))
    sizes = ("", "_32", "_64", "_224") if data == "shapes" else ("", "_64", "_224")
    names = [f"{family}{short}{size}" for family in families for size in sizes]
    return next((name for name in names if name in list_models()), short)


def _recipe_name(args: argparse.Namespace, config: Config) -> str:
    if args.weights is not None:
        return "transfer"
    if args.data == "shapes":
        return "shapes"
    side = config.img_size[0]
    if side <= 32 and args.data not in NAMED:
        return "tiny-images"
    return "small" if side <= 64 else "imagenette"
