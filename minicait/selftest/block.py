"""A block of cait_xxs24_224 at the size at which it is trained, on a GPU and in NumPy.

The cases of single kernels are small, and a mistake may show only in long sums and on many blocks of threads.
"""

from __future__ import annotations

import numpy as np

import autograd as ag
from autograd import Tensor
from autograd.backend import to_device

from ..models import create_model
from ..train.recipe import PRODUCTS
from .report import DIFFERS, OK, Finding

MODEL, BATCH = "cait_xxs24_224", 64
# norm of the difference, relative to the norm of NumPy's: some ten times the rounding errors of NumPy itself
ALLOWED = {"fp32": 1e-5, "tf32": 1e-2, "fp16": 1e-2}
LAYER_SCALE = 0.5  # instead of 1e-5, or the branches would be lost in rounding


def block_agrees(device: str) -> Finding:
    """Compare the result of a block, and the gradients of its input and all its parameters."""
    want = outcome("cpu", "fp32")
    lines, worst = [], dict.fromkeys(ALLOWED, 0.0)
    for precision in ALLOWED:
        apart = {name: relative_difference(value, want[name]) for name, value in outcome(device, precision).items()}
        worst[precision] = max(apart.values(), key=lambda value: (np.isnan(value), value))
        lines += [f"{precision} {name:20s} {value:.1e}" for name, value in apart.items()]
    agrees = all(worst[precision] <= allowed for precision, allowed in ALLOWED.items())  # False for NaN
    told = (f"{precision} {worst[precision]:.1e} ({allowed:.0e} allowed)" for precision, allowed in ALLOWED.items())
    return Finding(OK if agrees else DIFFERS, f"largest relative difference: {', '.join(told)}", lines)


def outcome(device: str, precision: str) -> dict[str, np.ndarray]:
    """Result and gradients of the block, by name."""
    model = create_model(MODEL, drop_path_rate=0.0)
    block = dict(model.to(device).named_modules())["blocks.0"]
    rng = np.random.default_rng(0)
    shape = BATCH, model.config.patches, model.config.dim
    x, g = (to_device(rng.standard_normal(shape).astype(np.float32), device) for _ in range(2))
    parameters = dict(block.named_parameters())
    for name, p in parameters.items():
        if name.startswith("gamma"):
            p.data[...] = LAYER_SCALE
    inputs = {"input": Tensor(x, requires_grad=True), **parameters}
    with ag.autocast(PRODUCTS[precision]):
        y = block(inputs["input"])
        gradients = ag.grad(y, list(inputs.values()), g)
    found = {"result": y, **dict(zip(inputs, gradients, strict=True))}
    return {name: value.numpy() for name, value in found.items() if value is not None}


def relative_difference(value: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference, relative to that of `want`."""
    scale = np.linalg.norm(want.astype(np.float64))
    return float(np.linalg.norm(value.astype(np.float64) - want) / (scale or 1))  # one gradient is exactly zero
