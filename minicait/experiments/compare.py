"""Small models side by side: the same images, steps and seeds for each, and measurements of gradients and residuals.

Used by examples/depth_experiment.py and examples/class_attention_experiment.py, which take minutes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import autograd as ag
from autograd import ops
from autograd.random import Stream

from ..data.loader import Batch
from ..data.picture import normalise
from ..data.shapes import Shapes
from ..files.atomic import write_bytes
from ..machine import blas_threads
from ..models.cait import CaiT
from ..nn import Linear
from ..nn.record import record
from ..train.evaluate import evaluate
from ..train.not_finite import NotFiniteError
from ..train.recipe import Recipe
from ..train.trainer import Trainer

WARMUP = 0.1  # share of all steps
Job = TypeVar("Job")


class Result(NamedTuple):
    losses: list[float]  # of all steps, or of those before training overflowed
    accuracy: float  # on validation images; NaN if training overflowed
    curve: list[tuple[int, float]]  # steps, and accuracy after them


def as_batch(shapes: Shapes) -> Batch:
    """Return all images of a dataset as one batch."""
    images, labels = zip(*(shapes[i] for i in range(len(shapes))), strict=True)
    return Batch(normalise(np.stack(images)), np.array(labels))


def random_batches(seen: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Yield batches of random images, without end."""
    for step in count():
        chosen = Stream(seed, "compare", step=step).generator().integers(0, len(seen.labels), size)
        yield Batch(seen.images[chosen], seen.labels[chosen])


def train(
    model: CaiT,
    seen: Batch | Iterable[Batch],
    unseen: Batch,
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    every: int = 0,
) -> Result:
    """Train with AdamW, warm-up and cosine, on one thread. A loss or gradient that is not finite ends the training.

    seen   all images, of which batches are drawn at random, or the batches themselves
    every  steps between evaluations; 0: evaluate at the end only
    """
    recipe = Recipe(lr=lr, constant_lr=False, warmup_epochs=WARMUP, batch_size=batch_size, seed=seed)
    trainer = Trainer(model, recipe, threads=1, processes=False, micro_batch=batch_size)  # small: not split
    trainer.total_steps = steps
    batches = random_batches(seen, batch_size, seed) if isinstance(seen, Batch) else seen
    losses: list[float] = []
    curve: list[tuple[int, float]] = []
    for step, batch in enumerate(islice(batches, steps), 1):
        try:
            with np.errstate(all="ignore"):  # the trainer reports what overflows
                losses.append(trainer.step(batch.images, batch.labels))
        except NotFiniteError:
            return Result(losses, math.nan, curve)
        if step == steps or (every and step % every == 0):
            curve.append((step, evaluate(model, [unseen], threads=1).top1))
    return Result(losses, curve[-1][1], curve)


def like_width(model: CaiT, width: int) -> None:
    """Scale the initial weights of all blocks, so that a layer acts on its input like one of `width` channels.

    Weights have standard deviation 0.02 at any width d, so a linear layer multiplies the size of a normalised input by
    0.02 sqrt(d): 0.11 for 32 channels, 0.39 for 384. Unscaled, a narrow model would be stable for this reason alone.
    """
    factor = math.sqrt(width / model.config.dim)
    for name, module in model.named_modules():
        if name.startswith("blocks") and isinstance(module, Linear) and ".proj_" not in name:  # talking heads
            module.weight.data *= np.float32(factor)


def gradient_flow(model: CaiT, images: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return ||dL/dx|| for the main path x before every block of the first stage, and after the last one."""
    path: list[ag.Tensor] = []

    def recorded(forward: Callable[..., ag.Tensor]) -> Callable[..., ag.Tensor]:
        def call(x: ag.Tensor) -> ag.Tensor:
            path.append(x)
            y = forward(x)
            if len(path) == len(model.blocks):
                path.append(y)
            return y

        return call

    for block in model.blocks:
        block.forward = recorded(block.forward)  # type: ignore[method-assign]
    try:
        with blas_threads(1):
            gradients = ag.grad(ops.cross_entropy(model(images), labels), path)
    finally:
        for block in model.blocks:
            del block.forward
    return [0.0 if g is None else float(np.linalg.norm(g.numpy())) for g in gradients]


def residual_ratios(model: CaiT, images: np.ndarray) -> dict[str, list[float]]:
    """Return ||branch|| / ||main path|| for attention and FFN of every block of the first stage (Fig. 4)."""
    with ag.no_grad(), blas_threads(1), record(model) as inside:
        model(images)
    blocks = range(len(model.blocks))
    return {part: [inside.residual[f"blocks.{i}.{part}"].ratio for i in blocks] for part in ("attn", "mlp")}


def in_processes(work: Callable[[Job], Any], jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, Any]]:
    """Yield the number of each job and work(job), as they finish. Every job runs on one thread."""
    if processes == 1:
        yield from enumerate(map(work, jobs))
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        numbers = {pool.submit(work, job): i for i, job in enumerate(jobs)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and the largest minus the smallest value."""
    return float(np.mean(values)), float(np.ptp(values))


def save(path: Path, command: str, machine: str, settings: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Write JSON with one line per result and numbers of four digits."""
    rows = ",\n".join("  " + json.dumps(_short(result)) for result in results)
    head = json.dumps({"command": command, "machine": machine, "settings": settings}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, f'{head[:-2]},\n "results": [\n{rows}\n ]\n}}\n'.encode())


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(v) for key, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list | tuple) else value
