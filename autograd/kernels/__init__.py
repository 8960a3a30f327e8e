"""Fused array functions: arrays in, arrays out, no Tensor. One file per idea; `autograd.ops` wraps them."""

from .gelu import erf, gelu
from .layer_norm import layer_norm, layer_norm_grad
from .softmax import log_softmax, log_softmax_grad, logsumexp, softmax, softmax_grad
from .total import mean, total, widened

__all__ = [
    "erf",
    "gelu",
    "layer_norm",
    "layer_norm_grad",
    "log_softmax",
    "log_softmax_grad",
    "logsumexp",
    "mean",
    "softmax",
    "softmax_grad",
    "total",
    "widened",
]
