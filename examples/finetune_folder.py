"""Fine-tune a trained CaiT on your own images: a folder that has a folder for each class.

    python examples/finetune_folder.py photos                               # from published weights, downloaded
    python examples/finetune_folder.py photos --weights runs/imagenette-1/weights/best.safetensors
    python examples/finetune_folder.py photos --weights best.safetensors --img-size 96

All weights are kept except for the head, which is initialised for your classes. The image size may differ from that of
the weights: position embeddings are resized (CaiT, Sec. 5; bicubic, as in the reference).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from minicait.cli import options
from minicait.cli.guard import guarded
from minicait.data import Source
from minicait.run.console import next_commands
from minicait.run.plan import Plan, absolute
from minicait.run.start import new_run
from minicait.train import recipe


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="has train/ and val/, or a folder for each class")
    parser.add_argument("--weights", default="cait_xxs24_224", help="a file or a published name (default: %(default)s)")
    parser.add_argument("--img-size", type=int, help="side of the images (default: that of the weights)")
    parser.add_argument("--recipe", default="transfer",
                        help="transfer for a new task, finetune for the same task at a higher resolution")  # fmt: skip
    parser.add_argument("--epochs", type=int, help="(default: the recipe's)")
    parser.add_argument("--batch-size", type=int, help="(default: the recipe's)")
    parser.add_argument("--lr", type=float, help="(default: the recipe's)")
    parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F",
                        help="share of images for validation without a val/ (default: %(default)s)")  # fmt: skip
    options.add_machine(parser)
    options.add_precision(parser)
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs (default: %(default)s)")
    args = parser.parse_args()
    machine = options.machine(args)
    how = recipe(args.recipe).changed(epochs=args.epochs, batch_size=args.batch_size, lr=args.lr, seed=args.seed,
                                      precision=args.precision)  # fmt: skip
    data = Source(str(args.folder.resolve()), val_fraction=args.val_fraction)
    plan = Plan(how, data, weights=absolute(args.weights), img_size=args.img_size)
    run = new_run(plan, args.out, f"{data.name}-finetuned", **machine)
    run.train()
    print(f"\nThe model, with its best weights, classified {run.best:.1%} of the validation images correctly.")
    print(next_commands(run))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, "finetune_folder"))
