"""Chapters 4 and 6: the operations of a transformer's block, and the layers made from them.

Weights are dicts from names to Tensors, with the names of the published weights: {"norm1.weight": ..., ...}.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .tensor import Context, Function, Tensor

Weights = dict[str, Tensor]


class Softmax(Function):
    """y = e^x / sum e^x along the last axis"""

    @staticmethod
    def forward(ctx: Context, x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(axis=-1, keepdims=True))  # without the shift, large x would overflow
        y: np.ndarray = e / e.sum(axis=-1, keepdims=True)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        """4.2  The gradient of x: dx_i = sum_j g_j dy_j/dx_i, with dy_j/dx_i = y_j ([i = j] - y_i).

        You need not build the matrix of all dy_j/dx_i: insert the derivative into the sum and simplify.

        Example: for y = (0.25, 0.75) and g = (1, 0), dx is (0.1875, -0.1875).
        """
        raise NotImplementedError("4.2")


class LayerNorm(Function):
    """LN(x) = weight (x - mean) / sqrt(var + eps) + bias, mean and variance along the last axis"""

    @staticmethod
    def forward(ctx: Context, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-6) -> np.ndarray:
        """4.3  x (..., d), weight and bias (d,). The variance is the mean of squares: division by d, not by d - 1.

        Example: x = (1, 3), weight = (1, 1), bias = (0, 0) gives (-1, 1), but for eps.
        """
        raise NotImplementedError("4.3")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """4.3  The gradients of x (..., d), weight (d,) and bias (d,).

        x reaches the output along three paths: directly, through the mean and through the variance. With xhat the
        normalised x and gw = g * weight, the three add up to

            dx = (gw - mean(gw) - xhat mean(gw xhat)) / sqrt(var + eps)
        """
        raise NotImplementedError("4.3")


class Gelu(Function):
    """y = x Phi(x), with Phi the distribution function of the normal distribution"""

    @staticmethod
    def forward(ctx: Context, x: np.ndarray) -> np.ndarray:
        """4.4  Phi(x) = (1 + erf(x / sqrt(2))) / 2, with `erf` from below; float32 stays float32.

        Example: x = (-1, 0, 1) gives (-0.1587, 0, 0.8413).
        """
        raise NotImplementedError("4.4")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        """4.4  The derivative of x Phi(x) has two terms; Phi' is the density e^(-x^2 / 2) / sqrt(2 pi)."""
        raise NotImplementedError("4.4")


# ---- given: the error function, and layers


_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf(x), dtype=x.dtype)


def part(w: Weights, prefix: str) -> Weights:
    """The weights whose names begin with `prefix.`, by the rest of their names: part(w, "blocks.0")["gamma_1"]."""
    start = f"{prefix}."
    return {name.removeprefix(start): x for name, x in w.items() if name.startswith(start)}


def linear(x: Tensor, w: Weights) -> Tensor:
    """x W^T + b, with the weight W (out, in) and the bias b (out,)."""
    return x @ w["weight"].swapaxes(0, 1) + w["bias"]


def layer_norm(x: Tensor, w: Weights) -> Tensor:
    return LayerNorm.apply(x, w["weight"], w["bias"])


def feed_forward(x: Tensor, w: Weights) -> Tensor:
    """FFN of eq. 2: fc2(GELU(fc1(x)))."""
    return linear(Gelu.apply(linear(x, part(w, "fc1"))), part(w, "fc2"))


def tensors(arrays: dict[str, Any]) -> Weights:
    """Arrays as Tensors that require a gradient."""
    return {name: Tensor(x, requires_grad=True) for name, x in arrays.items()}
