"""A short training with clipping, stochastic depth and EMA: the same batches on the device and on the CPU.

Only a few steps, because differences grow from step to step: Adam may divide one rounding error by another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import ops

from ..data.loader import Loader
from ..data.shapes import Shapes
from ..models import Model, create_model
from ..optim import LossScaler
from ..train import Recipe, Trainer, predict
from ..train.gradients import AS_GRAPH
from .report import DIFFERS, OK, Finding

ALLOWED = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2}  # relative difference of losses
PRECISIONS = tuple(ALLOWED)  # on a GPU
STEPS, BATCH = 8, 8
RECIPE = Recipe(lr=1e-3, clip_norm=1.0, ema_decay=0.9, label_smoothing=0.1)


def losses_agree(device: str, precision: str) -> Finding:
    """Compare the losses of a GPU with NumPy's, or NumPy's with those in float64. A GPU must do it by a CUDA graph."""
    got, scaler, launched = losses(device, precision)
    want, *_ = losses("cpu", dtype="float64" if device == "cpu" else "float32", processes=False)
    apart = [abs(a - b) / abs(b) for a, b in zip(got, want, strict=True)]
    columns = (device, "NumPy") if device != "cpu" else ("float32", "float64")
    lines = [f"{'':12s} {columns[0]:>12s} {columns[1]:>12s}  apart"]
    for i, numbers in enumerate(zip(got, want, apart, strict=True)):
        name = f"step {i + 1}" if i < STEPS else "average"
        lines.append("{:12s} {:12.7f} {:12.7f}  {:.1e}".format(name, *numbers))
    result = f"losses at most {max(apart):.1e} apart ({ALLOWED[precision]:.0e} allowed)"
    if precision == "fp16":
        lines.append(f"steps skipped: {scaler.skipped}; final loss scale: {scaler.scale:g}")
        result += f", {scaler.skipped} steps skipped"
    result += "" if launched is None else f", {launched}"
    agrees = all(difference <= ALLOWED[precision] for difference in apart)  # False for NaN
    by_graph = device == "cpu" or launched == AS_GRAPH
    return Finding(OK if agrees and by_graph else DIFFERS, result, lines)


def losses(
    device: str, precision: str = "fp32", dtype: str = "float32", processes: bool | None = None
) -> tuple[list[float], LossScaler, str | None]:
    """Return the loss of each step, and of the averaged weights on the last batch; the loss scaler; and how a GPU was
    launched.
    """
    model = small_model(dtype)
    batches = some_batches(model)
    trainer = Trainer(model, RECIPE, device, processes=processes, precision=precision)
    try:
        result = [trainer.step(images, labels) for images, labels in batches]
    finally:
        trainer.close()
    assert trainer.ema is not None
    images, labels = batches[-1]
    with trainer.ema.applied():
        logits = predict(trainer.model, images.astype(dtype))
    result.append(ops.cross_entropy(logits.astype(np.float64), labels).item())
    return result, trainer.scaler, trainer.gradients.graph_line()


def small_model(dtype: str = "float32", seed: int = 0) -> Model:
    return create_model("cait_tiny_32", len(Shapes.classes), drop_path_rate=0.1, seed=seed).astype(dtype)


def some_batches(model: Model) -> list[Any]:
    return list(Loader(Shapes(STEPS * BATCH, model.img_size[0]), BATCH, training=True, threads=0))
