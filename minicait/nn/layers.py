"""The small layers.

Weights are initialised as in the reference: normal with standard deviation 0.02, biases zero. They are drawn from the
stream given to a layer, so that a model's weights depend only on its seed and their names; a layer without one draws
from a new stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from autograd import Tensor, ops, random
from autograd.random import Stream
from autograd.tensor import as_tensor

from .module import Module, Parameter

TINY = 1e-6  # of a length, below which a vector has no direction
_SHAPES_ONLY = ContextVar("shapes_only", default=False)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside the block, weights are not drawn and take no memory: a model can be built to see its names and shapes."""
    before = _SHAPES_ONLY.set(True)
    try:
        yield
    finally:
        _SHAPES_ONLY.reset(before)


def truncated_normal(shape: tuple[int, ...], stream: Stream) -> np.ndarray:
    """Normal with standard deviation 0.02, truncated at ±2, as in the reference: that is 100 deviations."""
    if _SHAPES_ONLY.get():
        return np.broadcast_to(np.float32(0), shape)
    values = stream.generator().standard_normal(shape, dtype=np.float32)
    values *= 0.02
    return np.clip(values, -2, 2, out=values)


def uniform(shape: tuple[int, ...], bound: float, stream: Stream) -> np.ndarray:
    """U(-bound, bound)."""
    if _SHAPES_ONLY.get():
        return np.broadcast_to(np.float32(0), shape)
    return (stream.generator().random(shape, dtype=np.float32) * 2 - 1) * np.float32(bound)


def normalised(x: Any) -> Tensor:
    """x / ||x|| along the last axis: vectors of length one, whose products are cosines."""
    x = as_tensor(x)
    return x / ops.maximum(ops.norm(x, axis=-1, keepdims=True), TINY)


class Linear(Module):
    """y = x W^T + b, with W stored (out, in)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, stream: Stream | None = None) -> None:
        stream = stream or random.unnamed()
        self.weight = Parameter(truncated_normal((outputs, inputs), stream.named("weight")))
        self.bias = Parameter(np.zeros(outputs, np.float32)) if bias else None

    def forward(self, x: Any) -> Tensor:
        return ops.linear(x, self.matrix, self.bias)

    @property
    def matrix(self) -> Tensor:
        """The weight as a matrix (out, in)."""
        return self.weight

    def describe(self) -> str:
        outputs, inputs = self.weight.shape[:2]
        return f"{inputs} -> {outputs}{'' if self.bias is not None else ', no bias'}"


class Pointwise(Linear):
    """A 1 x 1 convolution on (..., channels): a linear layer whose weight is (out, in, 1, 1), initialised like one."""

    def __init__(self, inputs: int, outputs: int, stream: Stream | None = None) -> None:
        stream = stream or random.unnamed()
        bound = inputs**-0.5
        self.weight = Parameter(uniform((outputs, inputs, 1, 1), bound, stream.named("weight")))
        self.bias = Parameter(uniform((outputs,), bound, stream.named("bias")))

    @property
    def matrix(self) -> Tensor:
        return self.weight.reshape(self.weight.shape[:2])


class TokenLinear(Module):
    """A linear layer along the tokens, the same for every channel: y = A x + b with A (out, in), x (B, in, dim)."""

    def __init__(self, inputs: int, outputs: int, stream: Stream | None = None) -> None:
        stream = stream or random.unnamed()
        self.weight = Parameter(truncated_normal((outputs, inputs), stream.named("weight")))
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def forward(self, x: Any) -> Tensor:
        return ops.token_linear(x, self.weight, self.bias)

    def describe(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs} tokens"


class Affine(Module):
    """Aff(x) = diag(alpha) x + beta, eq. 4.1 of the thesis: ResMLP's norm, without statistics."""

    def __init__(self, dim: int) -> None:
        self.alpha = Parameter(np.ones(dim, np.float32))
        self.beta = Parameter(np.zeros(dim, np.float32))

    def forward(self, x: Any) -> Tensor:
        return ops.affine(x, self.alpha, self.beta)

    def describe(self) -> str:
        return str(self.alpha.size)


class LayerNorm(Module):
    """The normalisation eta of eq. 4: every token to mean 0 and variance 1, then scaled and shifted by channel."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        self.weight = Parameter(np.ones(dim, np.float32))
        self.bias = Parameter(np.zeros(dim, np.float32))
        self.eps = eps

    def forward(self, x: Any) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        return str(self.weight.size)


class LayerScale(Parameter):
    """diag(lambda_1, ..., lambda_d) of eq. 4: one learned factor per channel of a residual branch's output.

    All start at a small epsilon, so that a deep network starts close to the identity. A Parameter and not a Module,
    because that is how the published weights name it: `blocks.0.gamma_1`.
    """

    __slots__ = ()

    def __init__(self, dim: int, epsilon: float) -> None:
        super().__init__(np.full(dim, epsilon, np.float32))


class Branch(Module):
    """A residual branch that ends in a linear layer: `inner`, then `last`.

    `residual` takes them apart, because the linear layer, LayerScale and the sum with the input are one operation.
    """

    def inner(self, x: Any) -> Tensor:
        raise TypeError(f"{type(self).__name__} needs a method inner(self, x)")

    @property
    def last(self) -> Linear:
        raise TypeError(f"{type(self).__name__} needs a property last")

    def forward(self, x: Any) -> Tensor:
        return self.last(self.inner(x))


class Mlp(Branch):
    """The feed-forward network FFN of eq. 4: fc2(GELU(fc1(x)))."""

    def __init__(self, dim: int, hidden: int, stream: Stream | None = None) -> None:
        stream = stream or random.unnamed()
        self.fc1 = Linear(dim, hidden, stream=stream.named("fc1"))
        self.fc2 = Linear(hidden, dim, stream=stream.named("fc2"))

    def inner(self, x: Any) -> Tensor:
        return ops.gelu(self.fc1(x))

    @property
    def last(self) -> Linear:
        return self.fc2


class PatchEmbed(Module):
    """An image as tokens: cut into square patches, each flattened and projected to `dim` values.

    This is a convolution with kernel size and stride p: it multiplies the pixels of each patch with one matrix. The
    patches do not overlap, so a reshape cuts them out and one matrix product does the rest:

        (B, C, rows * p, columns * p)  ->  (B, rows * columns, C * p * p)  @  W^T (C * p * p, dim)

    Tokens are in reading order. The weight keeps the convolution's shape (dim, C, p, p).
    """

    def __init__(self, patch_size: int, dim: int, channels: int = 3, stream: Stream | None = None) -> None:
        stream = stream or random.unnamed()
        self.patch_size = patch_size
        self.proj = PatchProjection(patch_size, dim, channels, stream.named("proj"))

    def forward(self, images: Any) -> Tensor:
        x = as_tensor(images)
        p, channels = self.patch_size, self.proj.weight.shape[1]
        if x.ndim != 4 or x.shape[1] != channels or x.shape[2] % p or x.shape[3] % p:
            raise ValueError(
                f"PatchEmbed: images must have shape (B, {channels}, H, W) with H and W divisible by the patch size "
                f"{p}, got {x.shape}"
            )
        batch, _, height, width = x.shape
        x = x.reshape(batch, channels, height // p, p, width // p, p)
        x = x.transpose(0, 2, 4, 1, 3, 5)  # batch, row, column, then all of one patch
        return self.proj(x.reshape(batch, height // p * (width // p), channels * p * p))

    def describe(self) -> str:
        return f"{self.patch_size} x {self.patch_size} pixels"


class PatchProjection(Module):
    """A linear layer with the weight shape and the uniform initialisation of a convolution."""

    def __init__(self, patch_size: int, dim: int, channels: int, stream: Stream) -> None:
        shape = (dim, channels, patch_size, patch_size)
        bound = (channels * patch_size**2) ** -0.5
        self.weight = Parameter(uniform(shape, bound, stream.named("weight")))
        self.bias = Parameter(uniform((dim,), bound, stream.named("bias")))

    def forward(self, patches: Any) -> Tensor:
        return ops.linear(patches, self.weight.reshape(self.weight.shape[0], -1), self.bias)

    def describe(self) -> str:
        dim, channels, p, _ = self.weight.shape
        return f"{channels} x {p} x {p} -> {dim}"
