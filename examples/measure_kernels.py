"""Time each fused operation against its `reference`, which is made of simpler operations.

    python examples/measure_kernels.py                  # at the sizes of two images in cait_xxs24_224
    python examples/measure_kernels.py --images 16 --tokens 64 --dim 96 --heads 2

Forward and backward together, on one thread; the best of several rounds, in which the two sides take turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import autograd as ag
import minicait
from autograd import Tensor, kernels, ops
from autograd.ops.attention import TalkingHeadsAttention
from autograd.ops.nn import Gelu, LayerNorm, Softmax
from autograd.ops.residual import LinearResidual
from minicait.cli.guard import guarded
from minicait.machine import blas_threads, cpu_count, keep_freed_memory
from minicait.optim import AdamW


def forward_and_backward(fn: Any, inputs: list[Tensor], plain: tuple[Any, ...], v: np.ndarray) -> None:
    ag.grad(fn(*inputs, *plain), inputs, v)


def best_times(works: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The best time of each, in milliseconds."""
    times = [[0.0] * len(works) for _ in range(rounds)]
    for row in times:
        for i, work in enumerate(works):
            before = time.perf_counter()
            work()
            row[i] = 1e3 * (time.perf_counter() - before)
    return [min(column) for column in zip(*times, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("images", 2), ("tokens", 196), ("dim", 192), ("heads", 4), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=value, help="(default: %(default)s)")
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Tensor:
        return Tensor(rng.standard_normal(shape, dtype=np.float32), requires_grad=True)

    n, d, h = (args.images, args.tokens), args.dim, args.heads
    cases: dict[str, tuple[Any, Any, list[Tensor], tuple[Any, ...]]] = {
        "gelu": (ops.gelu, Gelu.reference, [normal(*n, 4 * d)], ()),
        "layer_norm": (ops.layer_norm, LayerNorm.reference, [normal(*n, d), normal(d), normal(d)], (1e-6,)),
        "softmax": (ops.softmax, Softmax.reference, [normal(args.images, h, args.tokens, args.tokens)], (-1,)),
        "linear_residual": (ops.linear_residual, LinearResidual.reference,
                            [normal(*n, d), normal(*n, 4 * d), normal(d, 4 * d), normal(d), normal(d)], (1.0, None)),
        "talking_heads_attention": (ops.talking_heads_attention, TalkingHeadsAttention.reference,
                                    [normal(*n, 3 * d), normal(h, h), normal(h), normal(h, h), normal(h)], (None,)),
    }  # fmt: skip
    keep_freed_memory()
    print(f"{'':24s} {'fused':>9s} {'reference':>10s} {'ratio':>6s}")
    with blas_threads(1):
        for name, (fused, reference, inputs, plain) in cases.items():
            v = rng.standard_normal(fused(*inputs, *plain).shape, dtype=np.float32)
            sides = [partial(forward_and_backward, fn, inputs, plain, v) for fn in (fused, reference)]
            show(name, *best_times(sides, args.rounds))
        x = rng.standard_normal((args.images * args.tokens, 4 * d), dtype=np.float32)
        adamw(args.rounds)
        show("sum over rows", *best_times([lambda: kernels.sum_over_rows(x), lambda: x.sum(axis=0)], args.rounds))
    return 0


def adamw(rounds: int) -> None:
    """AdamW over all parameters of cait_xxs24_224 as one flat array, and name by name."""
    model = minicait.create_model("cait_xxs24_224")
    optimiser = AdamW(model, 1e-3)
    optimiser.threads = cpu_count()
    flat = optimiser.parameters.zeros()
    plain = dict(flat)
    show("AdamW", *best_times([lambda: optimiser.step(flat), lambda: optimiser.step(plain)], rounds))


def show(name: str, fused: float, reference: float) -> None:
    print(f"{name:24s} {fused:6.2f} ms {reference:7.2f} ms {reference / fused:6.1f}")


if __name__ == "__main__":
    sys.exit(guarded(main, "measure_kernels"))
