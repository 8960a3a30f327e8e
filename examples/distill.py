"""Distil a trained model into a smaller one. By default hard: the teacher's decisions make up half of the loss.

    python examples/distill.py runs/photos-small-1/weights/best.safetensors photos
    python examples/distill.py best.safetensors photos --preset cait_tiny_32 --alone     # also without a teacher
    python examples/distill.py cait_s24_224 imagenet --preset cait_xxs24_224             # from published weights

The teacher sees the same images as the student, augmented and mixed. A student with one head learns from labels and
teacher with it; one with a distillation token, such as `deit_mini_distilled_64`, has a head for each.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from minicait.cli import options
from minicait.cli.guard import guarded
from minicait.data import Source
from minicait.data.source import NAMED
from minicait.run.console import next_commands
from minicait.run.plan import Plan, absolute
from minicait.run.start import new_run
from minicait.train import recipe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", help="its weights: a file or a published name")
    parser.add_argument("data", help="shapes, imagenette, or a folder of images")
    parser.add_argument("--preset", default="cait_tiny_64", help="the student (default: %(default)s)")
    parser.add_argument("--patch-size", type=int, help="the student's patch size (default: the preset's)")
    parser.add_argument("--recipe", default="small", help="(default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="(default: the recipe's)")
    parser.add_argument("--batch-size", type=int, help="(default: the recipe's)")
    parser.add_argument("--train-images", type=int, metavar="N", help="(default: all)")
    parser.add_argument("--val-images", type=int, metavar="N", help="(default: all)")
    parser.add_argument("--soft", action="store_true", help="soft distillation: match the teacher's probabilities")
    parser.add_argument("--alone", action="store_true", help="also train the student without a teacher, to compare")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F",
                        help="share of images for validation without a val/ (default: %(default)s)")  # fmt: skip
    options.add_machine(parser)
    options.add_precision(parser)
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs (default: %(default)s)")
    args = parser.parse_args()
    machine = options.machine(args)
    kind = "soft" if args.soft else "hard"
    how = recipe(args.recipe).changed(epochs=args.epochs, batch_size=args.batch_size, seed=args.seed, distillation=kind,
                                      precision=args.precision)  # fmt: skip
    where = args.data if args.data in NAMED else str(Path(args.data).resolve())
    data = Source(where, train_images=args.train_images, val_images=args.val_images, val_fraction=args.val_fraction)
    taught = Plan(how, data, args.preset, patch_size=args.patch_size, teacher=absolute(args.teacher))
    plans = {"distilled": taught}
    if args.alone:
        plans["alone"] = replace(taught, teacher=None, recipe=replace(how, distillation=None))
    scores = {}
    for name, plan in plans.items():
        run = new_run(plan, args.out, f"{data.name}-{name}", **machine)
        run.train()
        scores[name] = run.best
        print(next_commands(run))
    print("\n" + "; ".join(f"{name}: {score:.1%} top-1" for name, score in scores.items()))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "distill"))
