"""Losses. Targets are constants: no gradient flows into them, so a teacher's output must be detached.

`reduction` is "mean" (over the samples, i.e. all axes but the class axis), "sum", or "none" for one value per sample.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import kernels
from ..backend import FLOATS, Array, array_module, constant
from ..function import Context, Function, OperandError
from ..tensor import Tensor
from .arguments import full_precision, plain_number


class CrossEntropy(Function):
    """loss = -sum_k t_k log softmax(x)_k;  dx = softmax(x) sum(t) - t"""

    @staticmethod
    def forward(ctx: Context, logits: Array, targets: Array, reduction: str) -> Array:
        losses, dx = kernels.cross_entropy(logits, targets, with_grad=ctx.needs[0])
        ctx.save(dx, reduction)
        return _reduce(losses, reduction).astype(logits.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        dx, reduction = ctx.saved
        return dx * _per_sample(g, dx.shape[:-1], reduction)[..., None], None

    @staticmethod
    def reference(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
        losses = -(logits.log_softmax(-1) * soft_targets(targets, logits)).sum(-1)
        return _reduce(losses, reduction)


class BceWithLogits(Function):
    """loss = -t log s(x) - (1 - t) log(1 - s(x)) = max(x, 0) - x t + log(1 + e^-|x|);  dx = s(x) - t"""

    @staticmethod
    def forward(ctx: Context, logits: Array, targets: Array, reduction: str) -> Array:
        xp = array_module(logits)
        x = kernels.widened(logits)
        losses = xp.maximum(x, 0) - x * targets + xp.log1p(xp.exp(-xp.abs(x)))
        ctx.save(logits, targets, reduction)
        return _reduce(losses, reduction).astype(logits.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        logits, targets, reduction = ctx.saved
        return (kernels.sigmoid(logits) - targets) * _per_sample(g, logits.shape, reduction), None

    @staticmethod
    def reference(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
        p = logits.sigmoid()
        losses = -(targets * p.log() + (1 - targets) * (1 - p).log())
        return _reduce(losses, reduction)


class KlDiv(Function):
    """loss = sum_k p_k (log p_k - log q_k), with 0 log 0 = 0;  d(log q) = -p"""

    @staticmethod
    def forward(ctx: Context, log_q: Array, p: Array, reduction: str) -> Array:
        xp = array_module(log_q)
        terms = p * (xp.log(xp.where(p == 0, 1, p)) - xp.where(p == 0, 0, log_q))
        losses = kernels.total(terms, -1, dtype=np.float32)
        ctx.save(p, reduction)
        return _reduce(losses, reduction).astype(log_q.dtype, copy=False)

    @staticmethod
    def backward(ctx: Context, g: Array) -> Any:
        p, reduction = ctx.saved
        return -p * _per_sample(g, p.shape[:-1], reduction)[..., None], None

    @staticmethod
    def reference(log_q: Tensor, p: Tensor, reduction: str) -> Tensor:
        losses = (p * (p.log() - log_q)).sum(-1)
        return _reduce(losses, reduction)


def cross_entropy(logits: Any, targets: Any, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """Cross-entropy between logits (..., C) and class indices (...) or soft targets (..., C)."""
    logits = full_precision(logits)
    if not logits.ndim:
        raise OperandError("cross_entropy: logits need a last axis of classes, got shape ()")
    check_classes("cross_entropy", targets, logits.shape[-1])
    t = _targets("cross_entropy", targets, logits)
    if t.dtype.kind in "iu":
        _check_targets("cross_entropy", t, logits.shape[:-1], "class indices")
    else:
        _check_targets("cross_entropy", t, logits.shape, "soft targets")
    label_smoothing = plain_number("cross_entropy: label_smoothing", label_smoothing)
    if not 0 <= label_smoothing < 1:
        raise OperandError(f"cross_entropy: label_smoothing must be in [0, 1), got {label_smoothing}")
    if label_smoothing:
        t = soft_targets(t, logits, label_smoothing)
    return CrossEntropy.apply(logits, Tensor(t), reduction)


def bce_with_logits(logits: Any, targets: Any, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy of every logit against a target in [0, 1]; the mean is over all values."""
    logits = full_precision(logits)
    t = _targets("bce_with_logits", targets, logits).astype(logits.dtype, copy=False)
    _check_targets("bce_with_logits", t, logits.shape, "targets")
    return BceWithLogits.apply(logits, Tensor(t), reduction)


def kl_div(log_q: Any, p: Any, reduction: str = "mean") -> Tensor:
    """KL(p || q) over the last axis, from log-probabilities `log_q` (a student) and probabilities `p` (a teacher)."""
    log_q = full_precision(log_q)
    if not log_q.ndim:
        raise OperandError("kl_div: log_q needs a last axis of classes, got shape ()")
    t = _targets("kl_div", p, log_q).astype(log_q.dtype, copy=False)
    _check_targets("kl_div", t, log_q.shape, "p")
    return KlDiv.apply(log_q, Tensor(t), reduction)


def soft_targets(targets: Any, logits: Tensor, smoothing: float = 0.0) -> Array:
    """Targets (..., C) beside the logits: one-hot rows for class indices, and label smoothing s, (1 - s) t + s / C."""
    check_classes("soft_targets", targets, logits.shape[-1])
    t = _targets("soft_targets", targets, logits)
    if t.dtype.kind in "iu":
        t = (t[..., None] == array_module(t).arange(logits.shape[-1])).astype(logits.dtype)
        t /= t.sum(axis=-1, keepdims=True)  # 0 / 0 = NaN for an index that is no class, where nobody checked
    return t * (1 - smoothing) + smoothing / t.shape[-1] if smoothing else t


def check_classes(name: str, targets: Any, classes: int) -> None:
    """Check the range of class indices on the host. On a GPU the loss of an invalid index is NaN."""
    t = targets.data if isinstance(targets, Tensor) else targets
    t = np.asarray(t) if isinstance(t, list | tuple | np.generic) else t
    if isinstance(t, np.ndarray) and t.dtype.kind in "iu" and t.size and not (t.min() >= 0 and t.max() < classes):
        raise IndexError(f"{name}: class indices must be in [0, {classes - 1}], got {t.min()} to {t.max()}")


def _targets(name: str, targets: Any, logits: Tensor) -> Array:
    """Targets as an array on the device of the logits."""
    if logits.dtype not in FLOATS:
        raise TypeError(f"{name}: expected floating-point logits, got {logits.dtype}")
    if isinstance(targets, Tensor):
        if targets.requires_grad:
            raise OperandError(f"{name}: targets must not require grad; detach() them")
        targets = targets.data
    return constant(targets, like=logits.data)


def _check_targets(name: str, targets: Array, shape: tuple[int, ...], what: str) -> None:
    if targets.shape != shape:
        raise OperandError(f"{name}: {what} must have shape {shape} to match the logits, got {targets.shape}")


def _reduce(losses: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum() if isinstance(losses, Tensor) else kernels.total(losses)
    if reduction != "mean":
        raise OperandError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if losses.size == 0:
        raise OperandError("the mean loss of an empty batch is undefined")
    return losses.mean() if isinstance(losses, Tensor) else kernels.mean(losses)


def _per_sample(g: Array, shape: tuple[int, ...], reduction: str) -> Array:
    """Gradient of the loss of each sample."""
    if reduction == "mean":
        g = g * (1 / math.prod(shape))
    return array_module(g).broadcast_to(g, shape) if reduction != "none" else g
