"""Small models side by side: the same images, steps and seeds for each, and what to measure in them.

For experiments that say something in minutes (examples/depth_experiment.py, examples/class_attention_experiment.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
from ..machine import blas_threads
from ..models.cait import CaiT
from ..nn import Linear
from ..nn.record import record
from ..train.evaluate import evaluate
from ..train.recipe import Recipe
from ..train.trainer import Trainer

WARMUP = 0.1  # of all steps
Job = TypeVar("Job")


class Result(NamedTuple):
    losses: list[float]  # of every step
    accuracy: float  # on images it has not seen


def whole(shapes: Shapes) -> Batch:
    """All images of a set as one batch."""
    images, labels = zip(*(shapes[i] for i in range(len(shapes))), strict=True)
    return Batch(normalise(np.stack(images)), np.array(labels))


def train(model: CaiT, seen: Batch, unseen: Batch, steps: int, lr: float, batch_size: int, seed: int) -> Result:
    """AdamW with warm-up and cosine on batches drawn at random, and the accuracy in the end. On one thread."""
    recipe = Recipe(lr=lr, constant_lr=False, warmup_epochs=WARMUP, batch_size=batch_size, seed=seed)
    trainer = Trainer(model, recipe, threads=1, processes=False, micro_batch=batch_size)  # small: in one piece
    trainer.total_steps = steps
    losses = []
    for step in range(steps):
        chosen = Stream(seed, "compare", step=step).generator().integers(0, len(seen.labels), batch_size)
        losses.append(trainer.step(seen.images[chosen], seen.labels[chosen]))
    return Result(losses, evaluate(model, [unseen], threads=1).top1)


def like_width(model: CaiT, width: int) -> None:
    """Scale the first weights of all blocks, so that a layer does to its input what one of `width` channels would.

    Weights have standard deviation 0.02 at any width d, so a linear layer multiplies the size of a normalised input by
    0.02 sqrt(d): 0.11 for 32 channels, 0.39 for 384. A narrow model is tame because of that, and not because it is
    shallow or well made.
    """
    factor = math.sqrt(width / model.config.dim)
    for name, module in model.named_modules():
        if name.startswith("blocks") and isinstance(module, Linear) and ".proj_" not in name:  # which mix heads
            module.weight.data *= np.float32(factor)


def gradient_flow(model: CaiT, images: np.ndarray, labels: np.ndarray) -> list[float]:
    """||dL/dx|| for the main path x before every block of the first stage, and behind the last of them."""
    path: list[ag.Tensor] = []

    def seen(forward: Callable[..., ag.Tensor]) -> Callable[..., ag.Tensor]:
        def listening(x: ag.Tensor, *rest: Any) -> ag.Tensor:
            path.append(x)
            y = forward(x, *rest)
            if len(path) == len(model.blocks):
                path.append(y)
            return y

        return listening

    for block in model.blocks:
        block.forward = seen(block.forward)  # type: ignore[method-assign]
    try:
        with blas_threads(1):
            loss = ops.cross_entropy(model(images), labels)
            gradients = ag.grad(loss, path)
    finally:
        for block in model.blocks:
            del block.forward
    return [0.0 if g is None else float(np.linalg.norm(g.numpy())) for g in gradients]


def residual_ratios(model: CaiT, images: np.ndarray) -> dict[str, list[float]]:
    """||branch|| / ||main path|| of every block of the first stage (Fig. 4), for attention and FFN."""
    with ag.no_grad(), blas_threads(1), record(model) as inside:
        model(images)
    return {
        part: [inside.residual[f"blocks.{i}.{part}"].ratio for i in range(len(model.blocks))]
        for part in ("attn", "mlp")
    }


def in_processes(work: Callable[[Job], Any], jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, Any]]:
    """(number of the job, work(job)), as they are done. Every job is computed by one thread."""
    if processes == 1:
        yield from enumerate(map(work, jobs))
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:  # as it works everywhere
        numbers = {pool.submit(work, job): i for i, job in enumerate(jobs)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and how far the values are apart: the largest minus the smallest."""
    return float(np.mean(values)), float(np.ptp(values))


def save(path: Path, command: str, machine: str, settings: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """One line for each result, numbers to four digits."""
    rows = ",\n".join("  " + json.dumps(_short(result)) for result in results)
    head = json.dumps({"command": command, "machine": machine, "settings": settings}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-2]},\n "results": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(v) for key, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list | tuple) else value
