"""A small network learns to tell two spirals apart, on nothing but `autograd`, and draws what it has learned.

python examples/two_spirals.py                # a few seconds; writes two_spirals.png
python examples/two_spirals.py --steps 2000 --hidden 128
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import autograd as ag
from autograd import Tensor, ops

PANELS = 4  # pictures of the network, from its first step to its last
EXTENT = 1.25  # the part of the plane that is shown, from -EXTENT to EXTENT
Data = tuple[np.ndarray, np.ndarray]  # points (count, 2), and which spiral each is on


def spirals(count: int, seed: int) -> Data:
    """Points on two intertwined spirals."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    turn = np.sqrt(rng.uniform(0.02, 1, count))
    angle = 3.5 * math.pi * turn + math.pi * labels
    points = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (points + rng.normal(0, 0.02, points.shape)).astype(np.float32), labels


def make_parameters(hidden: int, seed: int) -> list[Tensor]:
    """Weights (out, in) and biases of 2 -> hidden -> hidden -> 2."""
    rng = np.random.default_rng(seed)
    parameters = []
    for inputs, outputs in ((2, hidden), (hidden, hidden), (hidden, 2)):
        weight = rng.normal(0, math.sqrt(2 / inputs), (outputs, inputs)).astype(np.float32)
        parameters += [Tensor(weight, requires_grad=True), Tensor(np.zeros(outputs, np.float32), requires_grad=True)]
    return parameters


def network(points: np.ndarray | Tensor, *parameters: Tensor) -> Tensor:
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = ops.gelu(ops.linear(points, w1, b1))
    hidden = ops.gelu(ops.linear(hidden, w2, b2))
    return ops.linear(hidden, w3, b3)


def train(data: Data, parameters: list[Tensor], steps: int, show: Callable[[int], None]) -> None:
    """Adam, written out: each value's step is its mean gradient over the root of its mean squared gradient."""
    points, labels = data
    mean = [np.zeros_like(p.data) for p in parameters]
    square = [np.zeros_like(p.data) for p in parameters]
    start = time.perf_counter()
    for step in range(1, steps + 1):
        loss = ops.cross_entropy(network(points, *parameters), labels)
        for p, m, s, g in zip(parameters, mean, square, ag.grad(loss, parameters), strict=True):
            assert g is not None
            m += 0.1 * (g.data - m)
            s += 0.01 * (g.data * g.data - s)
            p.data -= 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.99**step)) + 1e-8)
        if step in (1, steps) or step % max(1, steps // 10) == 0:
            rate = step / (time.perf_counter() - start)
            print(f"step {step:5d}/{steps}   loss {loss.item():.4f}   {rate:.0f} steps/s", flush=True)
        show(step)


@ag.no_grad()
def accuracy(data: Data, parameters: list[Tensor]) -> float:
    points, labels = data
    return float((network(points, *parameters).numpy().argmax(-1) == labels).mean())


@ag.no_grad()
def panel(data: Data, parameters: list[Tensor], caption: str, size: int = 260) -> Image.Image:
    """Picture of the decision at every point of the plane, with the training points on top."""
    line = np.linspace(-EXTENT, EXTENT, size, dtype=np.float32)
    plane = np.stack(np.meshgrid(line, -line), axis=-1)
    second = ops.softmax(network(plane, *parameters)).numpy()[..., 1:]
    colours = (1 - second) * np.array([70, 130, 200]) + second * np.array([235, 150, 60])
    certain = np.abs(2 * second - 1)
    picture = Image.fromarray((245 + (colours - 245) * (0.25 + 0.6 * certain)).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    points, labels = data
    for (x, y), label in zip((points * [1, -1] / EXTENT + 1) * size / 2, labels, strict=True):
        draw.ellipse([x - 2, y - 2, x + 2, y + 2], fill=(15, 50, 110) if label == 0 else (130, 55, 0))
    draw.text((8, 6), caption, fill=(20, 20, 20), font_size=14)
    return picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the two hidden layers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of data and weights (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("two_spirals.png"), help="the picture (default: %(default)s)")
    args = parser.parse_args()
    for name, least in (("steps", 1), ("hidden", 1), ("seed", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(args, name)}")
    if not args.out.parent.is_dir():
        parser.error(f"--out: there is no folder {args.out.parent}")
    if args.out.suffix.lower() not in Image.registered_extensions():
        parser.error(f"--out: {args.out.name!r} does not end like a picture, such as .png")

    data = points, labels = spirals(400, args.seed)
    parameters = make_parameters(args.hidden, args.seed)
    print(
        f"NumPy {np.__version__}; {len(points)} points on two spirals; {sum(p.size for p in parameters):,} parameters"
    )

    ag.check_grads(lambda *p: ops.cross_entropy(network(points[:8], *p), labels[:8]), parameters)
    print("gradients of the whole network: equal to numerical ones")

    shown = {round(1 + (args.steps - 1) * (i / (PANELS - 1)) ** 2) for i in range(PANELS)}
    pictures = []

    def show(step: int) -> None:
        if step in shown:
            pictures.append(panel(data, parameters, f"step {step}: {accuracy(data, parameters):.0%}"))

    train(data, parameters, args.steps, show)
    print(f"accuracy on 2,000 new points: {accuracy(spirals(2000, args.seed + 1), parameters):.1%}")

    strip = Image.new("RGB", (sum(p.width + 8 for p in pictures) - 8, pictures[0].height), "white")
    for i, picture in enumerate(pictures):
        strip.paste(picture, (i * (picture.width + 8), 0))
    unfinished = args.out.with_name(f".{args.out.name}.tmp")
    strip.save(unfinished, format=Image.registered_extensions()[args.out.suffix.lower()])
    unfinished.replace(args.out)
    print(f"what it learned: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
