"""Train a CaiT to tell shapes apart: the training loop itself, without a Trainer, to be read from top to bottom.

    python examples/train_cait.py               # a minute or two on two cores, to an accuracy of about 95 %
    python examples/train_cait.py --epochs 1    # just to see it run

`minicait.train.Trainer` adds what a long run needs; docs/chapters/11_the_training_step.md compares the two.
"""

from __future__ import annotations

import argparse
import sys

from tqdm import tqdm

from autograd import ops
from minicait import create_model
from minicait.data import InMemory, Loader, Shapes
from minicait.optim import AdamW, clip_gradients, learning_rate
from minicait.train import evaluate, value_and_grad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6000, help="training images (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate (default: %(default)s)")
    args = parser.parse_args()

    model = create_model("cait_tiny_32", num_classes=len(Shapes.classes), patch_size=8)
    train_set = InMemory(Shapes(args.images, size=32, seed=0, difficulty="easy"))
    val_set = InMemory(Shapes(500, size=32, seed=1, difficulty="easy"))
    train_loader = Loader(train_set, args.batch_size, training=True)
    val_loader = Loader(val_set, batch_size=100)
    optimiser = AdamW(model, args.lr, weight_decay=0.05)
    total = args.epochs * len(train_loader)
    print(f"CaiT of {model.parameter_count():,} parameters, {args.images} images, {total} steps")

    for epoch in range(args.epochs):
        losses = []
        for images, labels in tqdm(train_loader.epoch(epoch), total=len(train_loader), leave=False, disable=None):
            loss, gradients = value_and_grad(model, ops.cross_entropy, images, labels)
            clip_gradients(gradients, max_norm=1.0)
            optimiser.step(gradients, learning_rate(optimiser.steps, total, warmup=total // 10, peak=args.lr))
            losses.append(loss)
        loss, accuracy = sum(losses) / len(losses), evaluate(model, val_loader).top1
        print(f"epoch {epoch + 1}: loss {loss:.3f}, validation accuracy {accuracy:.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
