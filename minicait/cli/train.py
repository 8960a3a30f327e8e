"""minicait train: turn the options into a plan, and run it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.source import NAMED, Source
from ..data.transforms import Augmentation
from ..files.pretrained import open_pretrained
from ..models import FAMILIES, Config, find_model, list_models
from ..models.grafit import GrafitConfig
from ..run.console import next_commands
from ..run.overview import PAGE
from ..run.plan import Plan, absolute
from ..run.run import CHECKPOINT_MINUTES
from ..run.start import new_run, resume_run
from ..text import printable
from ..train.job import world
from ..train.recipe import recipe, with_settings
from . import options

EXAMPLES = """examples:
  minicait train --data photos                      the tiny preset on your own images
  minicait train --data photos --preset resmlp_mini another family
  minicait train --data path/to/cifar10 --groups cifar10 --preset grafit_deit_mini_32   coarse labels, for `retrieve`
  minicait train --data photos --weights cait_xxs24_224 --recipe transfer       start from published weights
  minicait train --data imagenette --preset small --img-size 64 --epochs 20
  minicait train --resume runs/photos-tiny-1        resume a run that was stopped

recipes:
  small, small-deit3                                a small model and some thousand photographs, on a laptop
  small-long                                        the same for a hundred epochs and more
  small-tokens, small-grafit                        photographs with label maps, and for a Grafit
  tiny-images, shapes                               images of 32 pixels, such as CIFAR's; shapes that are drawn here
  imagenette                                        some thousand photographs, on a GPU
  transfer                                          trained weights learn another, small task
  cait, deit, deit3, resmlp, patchconvnet, lvvit    ImageNet, as in the papers
  finetune, deit3-finetune                          the papers' fine-tuning at another resolution
"""
NOT_PLANNED = {"resume", "device", "threads", "micro_batch", "skip_bad_images", "checkpoint_minutes", "no_graph"}


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "train", _train, "train a model", EXAMPLES)
    add = parser.add_argument_group("model").add_argument
    add("--preset", default="tiny", help="tiny, small, xxs24, ... of CaiT, or with a family's name: deit_mini, "
        "resmlp_mini, ...; see `minicait models` (default: %(default)s)")  # fmt: skip
    add("--img-size", type=int, help="side of the images in pixels (default: the preset's)")
    add("--patch-size", type=int, help="side of the patches (default: the preset's; with a small preset and --img-size "
        "an eighth of it)")  # fmt: skip
    add("--weights", help=f"initial weights: a file, or published ones: {options.PUBLISHED}")
    add("--teacher", help="distil this model: a file, or published weights; --set distillation=soft, "
        "distillation_weight=0.1 and temperature=3 say how (default: hard, 0.5)")  # fmt: skip
    add("--token-labels", metavar="FILE", help="label maps from `minicait label-tokens`, for a model that classifies "
        "patches: lvvit_mini, ...")  # fmt: skip
    data = parser.add_argument_group("data")
    options.add_data(data, Source.val_fraction)
    data.add_argument("--train-images", type=int, metavar="N",
                      help="use at most N training images (default: all, or 6000 shapes)")  # fmt: skip
    how = parser.add_argument_group("recipe")
    add = how.add_argument
    add("--recipe", metavar="NAME", help="see below (default: one that suits the data and the preset)")
    add("--epochs", type=int, help="passes over the training images (default: the recipe's)")
    add("--batch-size", type=int, help="images per step (default: the recipe's)")
    add("--lr", type=float, help="peak learning rate (default: the recipe's)")
    options.add_precision(how)
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="any other value of the recipe: mixup=0.2, crop=padded, colour_jitter=0.3, ...")  # fmt: skip
    add("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    run = parser.add_argument_group("run")
    add = run.add_argument
    add("--out", type=Path, default=Path("runs"), help="folder of runs (default: %(default)s)")
    add("--resume", type=Path, metavar="FOLDER", help="resume a run, bit for bit")
    options.add_machine(run)
    add(
        "--no-graph", action="store_true", help="on a GPU, launch the kernels of a step one by one, not as a CUDA graph"
    )
    add("--evaluate-every", type=int, metavar="N", help="epochs from one evaluation to the next; the last is always "
        "evaluated (default: as often as takes a twentieth of the time)")  # fmt: skip
    add("--checkpoint-minutes", type=float, default=CHECKPOINT_MINUTES, metavar="M", help="within an epoch, write a "
        "checkpoint every M minutes; 0: after every batch (default: %(default)g)")  # fmt: skip
    add("--runs", type=int, default=1, metavar="N", help="train with N seeds, and print mean and standard deviation")
    add("--smoke", action="store_true", help="train for a few seconds, to see that everything works")
    add("--overfit-one-batch", action="store_true", help="train on a single batch, to check the model")
    parser.set_defaults(defaults=vars(parser.parse_args([])))


def _train(args: argparse.Namespace) -> int:
    world()  # of several ranks, one speaks
    options.check_positive(args, "runs", "evaluate_every", "img_size", "patch_size")
    if not args.checkpoint_minutes >= 0:  # NaN is neither
        raise ValueError(f"--checkpoint-minutes must be at least 0, got {args.checkpoint_minutes:g}")
    own = {"checkpoint_minutes": args.checkpoint_minutes, "graph": not args.no_graph}
    machine = {**options.machine(args), **own}
    given = [name for name, default in args.defaults.items() if getattr(args, name) != default]
    if args.resume is not None and (planned := [options.flag(name) for name in given if name not in NOT_PLANNED]):
        raise ValueError(f"--resume continues a run as planned; omit {', '.join(planned)}")
    scores, complete = [], False
    for number in range(args.runs):
        if args.resume is not None:
            run = resume_run(args.resume, **machine)
            epochs = run.plan.recipe.epochs
            if complete := run.trainer.epoch == epochs:
                print(f"the run is complete ({epochs} of {epochs} epochs)")
        else:
            plan = _plan(args, args.seed + number)
            kind = args.preset if args.weights is None else "from-weights"
            run = new_run(plan, args.out, f"{plan.data.name}-{kind}", **machine)
        last = run.train()
        scores.append(last.score)
        if args.overfit_one_batch:
            print(f"the model classifies {last.top1:.1%} of the batch correctly")
        print(printable(f"best weights: {run.best_weights}, top-1 {run.best:.1%}"))
        print(printable(f"to open in a browser: {run.path / PAGE}"))
        pictures = [run.path / name for name in ("curves.svg", "attention.png") if (run.path / name).is_file()]
        print(printable(f"see also {' '.join(map(str, [*pictures, *run.reports]))}"))
        if run.signals.received is not None and number + 1 < args.runs:
            print(f"stopped after {number + 1} of {args.runs} runs: {_mean(scores)}")
            return 128 + run.signals.received
    print(next_commands(run, resume=not complete))
    if args.runs > 1:
        print(f"top-1 after the last epoch: {_mean(scores)}")
    return 0


def _mean(scores: list[float]) -> str:
    """Mean and standard deviation over runs."""
    if len(scores) == 1:
        return f"{scores[0]:.1%} of one run"
    return f"{np.mean(scores):.1%} ± {np.std(scores, ddof=1):.1%} over {len(scores)} runs"


def _plan(args: argparse.Namespace, seed: int) -> Plan:
    if args.smoke and args.overfit_one_batch:
        raise ValueError("choose one of --smoke and --overfit-one-batch")
    if args.weights is not None and (args.preset != args.defaults["preset"] or args.patch_size is not None):
        raise ValueError("--weights determines the model; omit --preset and --patch-size")
    model = _model_name(args.preset, args.data)
    config, patch = find_model(model)[1], args.patch_size
    small = args.weights is None and config.img_size[0] == 8 * config.patch_size  # a preset for small images
    if small and patch is None and args.img_size is not None:
        if args.img_size % 8:
            raise ValueError(
                f"--img-size {args.img_size} is not a multiple of 8, the patches per row; try --patch-size"
            )
        patch = args.img_size // 8
    chosen = recipe(args.recipe or _recipe_name(args, config))
    if args.weights is not None:
        chosen = chosen.changed(init="reference")  # there is nothing to initialise but the head
        if any(setting.startswith("init=") for setting in args.set):
            raise ValueError("--weights are the initial weights; omit --set init")
    if args.teacher is not None and chosen.distillation is None:
        chosen = chosen.changed(distillation="hard")
    if args.smoke:
        chosen = chosen.changed(epochs=2, batch_size=8)
    if args.overfit_one_batch:
        plain = {"label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0, "weight_decay": 0.0, "constant_lr": True}
        views = chosen.repeats if chosen.loss == "neighbours" else 1
        chosen = chosen.changed(epochs=60, augmentation=Augmentation(), repeats=views, **plain)
    given = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr, "precision": args.precision}
    chosen = with_settings(chosen.changed(**given, seed=seed), args.set)
    data = options.source(args, train_images=args.train_images)
    if data.data not in NAMED:
        data = replace(data, data=str(Path(data.data).resolve()))  # so that a run resumes from any folder
    if args.smoke:
        data = replace(data, train_images=4 * chosen.batch_size, val_images=20)
    if args.overfit_one_batch:
        data = replace(data, train_images=chosen.batch_size)
    weights, teacher = absolute(args.weights), absolute(args.teacher)
    labels = None if args.token_labels is None else str(Path(args.token_labels).resolve())
    sizes = args.img_size, patch
    return Plan(chosen, data, model, *sizes, weights, teacher, args.overfit_one_batch, labels, args.evaluate_every)


def _model_name(short: str, data: str) -> str:
    """Complete a short name: tiny is cait_tiny_32 on shapes, cait_tiny_64 on photographs; xxs24 is cait_xxs24_224.

    One without a family belongs to the first that has it.
    """
    families = ("", *(f"{family.name}_" for family in FAMILIES))
    sizes = ("", *("_32",) * (data == "shapes"), "_64", "_224", "_patch16_224")
    names = [f"{family}{short}{size}" for family in families for size in sizes]
    return next((name for name in names if name in list_models()), short)


def _recipe_name(args: argparse.Namespace, config: Config) -> str:
    config = config if args.weights is None else open_pretrained(args.weights)[1].config
    if isinstance(config, GrafitConfig):
        return "small-grafit"
    if args.weights is not None:
        return "transfer"
    side = config.img_size[0]
    if args.token_labels is not None:
        return "small-tokens" if side <= 64 else "lvvit"
    if args.data == "shapes":
        return "shapes"
    if side <= 32 and args.data not in NAMED:
        return "tiny-images"
    return "small" if side <= 64 else "imagenette"
