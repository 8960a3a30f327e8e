"""A small CaiT learns to tell ten shapes apart, on any machine and without any download, in about four minutes.

    python examples/train_shapes.py
    python examples/train_shapes.py --epochs 2        # a first look
    minicait train --help                             # the same with all its options

The data is drawn on the spot: light objects of ten kinds on dark, textured backgrounds, anywhere in the image. A linear
classifier on the pixels is trained beside CaiT, to show that the task is not one of counting pixels. The folder that is
printed has the curves, the weights, and a checkpoint from which `minicait train --resume FOLDER` goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from autograd import cuda_available
from minicait.data import Shapes
from minicait.train import NotFiniteError, recipe
from minicait.train.run import Plan, Run, Stopped, new_folder


def linear_classifier(train: Shapes, test: Shapes) -> float:
    """Ridge regression from pixels to classes, solved exactly: its accuracy."""
    (x, labels), (new, new_labels) = (pixels_and_labels(shapes) for shapes in (train, test))
    mean = x.mean(axis=0)
    x, new = x - mean, new - mean
    weights = np.linalg.solve(x.T @ x + 100 * np.eye(x.shape[1]), x.T @ (np.eye(10)[labels] - 0.1))
    return float(((new @ weights).argmax(axis=1) == new_labels).mean())


def pixels_and_labels(shapes: Shapes) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*(shapes[i] for i in range(len(shapes))), strict=True)
    return np.stack(images).reshape(len(images), -1) / 255, np.array(labels)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, help="(default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="(default: %(default)s)")
    args = parser.parse_args()
    try:
        how = recipe("small").changed(epochs=args.epochs, seed=args.seed)
        plan = Plan("cait_tiny_32", how, train_images=6000, val_images=500, difficulty="easy", patch_size=8)
        run = Run(plan, Path(), device="cuda" if cuda_available() else "cpu")
        print("a linear classifier on the same images:", end=" ", flush=True)
        print(f"{linear_classifier(run.train_set, run.val_set):.1%}")
        run.path = new_folder(args.out, "shapes")
        last = run.go()
    except Stopped as stop:
        print(f"stopped by {stop}; to go on: minicait train --resume {run.path}")
        return stop.code
    except (ValueError, OSError, NotFiniteError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    print(f"\nCaiT is right for {last.score:.1%} of new images.")
    before, after = run.attention_at_start, last.attention_inside
    print(f"Of its class attention, {after:.1%} is on the object; before training it was {before:.1%}.")
    weights = str(run.path / "weights/best.safetensors")
    print(f"See {run.path / 'curves.svg'}; the weights are for minicait.load_model({weights!r}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
