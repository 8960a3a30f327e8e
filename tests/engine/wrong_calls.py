"""A wrong call of every operation, and the sentence that it gets."""

from __future__ import annotations

import numpy as np

from autograd import Tensor, ops
from autograd.random import Stream

F = np.float32


def t(*shape: int, dtype=F) -> Tensor:
    return Tensor(np.ones(shape, dtype))


# operation -> a wrong call, the type of the error, and a pattern for its message
WRONG_CALLS = {
    "add": (lambda: t(3, 4) + t(5), ValueError, r"add: shapes \(3, 4\) and \(5,\) do not broadcast together"),
    "subtract": (
        lambda: t(3) - t(3, dtype=np.float64),
        TypeError,
        "subtract: .*one float dtype, got float32 and float64",
    ),
    "multiply": (lambda: t(2) * "x", TypeError, "expected booleans, integers or floats"),
    "divide": (
        lambda: t(2, dtype=int) / t(2, dtype=int),
        TypeError,
        "divide: the result would silently become float64",
    ),
    "negative": (lambda: ops.negative(t(2, dtype=bool)), TypeError, "negative: .*bool"),
    "pow": (lambda: t(2, 3) ** t(3, 2), ValueError, r"pow: shapes \(2, 3\) and \(3, 2\) do not broadcast"),
    "exp": (lambda: ops.exp(t(2, dtype=int)), TypeError, r"exp: .*float64; cast integers first.*\(2,\) int64"),
    "log": (lambda: ops.log(t(2, dtype=int)), TypeError, "log: the result would silently become float64"),
    "sqrt": (lambda: ops.sqrt(t(2, dtype=int)), TypeError, "sqrt: the result would silently become float64"),
    "tanh": (lambda: ops.tanh(t(2, dtype=int)), TypeError, "tanh: the result would silently become float64"),
    "erf": (lambda: ops.erf(t(2, dtype=int)), TypeError, "erf: expected floating-point values, got int64"),
    "sigmoid": (lambda: ops.sigmoid(t(2, dtype=int)), TypeError, "sigmoid: the result would silently become float64"),
    "relu": (lambda: ops.relu("x"), TypeError, "expected booleans, integers or floats"),
    "abs": (lambda: ops.abs(None), TypeError, "expected booleans, integers or floats"),
    "maximum": (lambda: ops.maximum(t(2), t(3)), ValueError, r"maximum: shapes \(2,\) and \(3,\) do not broadcast"),
    "minimum": (lambda: ops.minimum(t(2), t(3)), ValueError, r"minimum: shapes \(2,\) and \(3,\) do not broadcast"),
    "where": (lambda: ops.where(t(2), t(2), t(2)), ValueError, "where: condition must be boolean, got float32"),
    "clip": (lambda: ops.clip(t(2)), ValueError, "clip: expected min, max or both, got neither"),
    "astype": (lambda: ops.astype(t(2), "complex64"), TypeError, "expected booleans, integers or floats"),
    "to_device": (lambda: t(2).to("gpu"), ValueError, "unknown device 'gpu': expected 'cpu', 'cuda'"),
    "sum": (lambda: t(2, 3).sum(2), ValueError, r"sum: axis 2 is out of range for 2 axes .*\(2, 3\) float32"),
    "mean": (lambda: t(2, 0).mean(1), ValueError, r"mean: the mean over an empty axis is undefined.*\(2, 0\)"),
    "var": (lambda: t(2, 1).var(1, ddof=1), ValueError, "var: the variance needs more than ddof=1 values, got 1"),
    "max": (lambda: t(0).max(), ValueError, "max: the max over an empty axis is undefined"),
    "min": (lambda: t(2, 2).min((0, 0)), ValueError, r"min: axis \(0, 0\) names an axis twice"),
    "logsumexp": (lambda: t(2).logsumexp(1), ValueError, "logsumexp: axis 1 is out of range for 1 axes"),
    "reshape": (lambda: t(2, 3).reshape(4), ValueError, r"reshape: .*size 6 into shape \(4,\)"),
    "transpose": (lambda: t(2, 3).transpose(0, 0), ValueError, r"transpose: axis \(0, 0\) names an axis twice"),
    "swapaxes": (lambda: t(2).swapaxes(0, 1), ValueError, r"swapaxes: axis 0 or 1 is out of range for shape \(2,\)"),
    "broadcast_to": (lambda: t(3).broadcast_to(2), ValueError, r"broadcast_to: .*\(3,\)"),
    "expand_dims": (lambda: t(3).expand_dims(4), ValueError, "expand_dims: axis 4 does not fit"),
    "squeeze": (lambda: t(3).squeeze(0), ValueError, r"squeeze: axis 0 of shape \(3,\) .* not of size 1"),
    "concat": (lambda: ops.concat([t(2, 3), t(2)]), ValueError, r"concat: .*\(2, 3\) float32, \(2,\) float32"),
    "stack": (lambda: ops.stack([t(2), t(3)]), ValueError, r"stack: all shapes must be equal, got \(2,\), \(3,\)"),
    "all": (lambda: t(2).all(1), ValueError, r"all: axis 1 is out of range for 1 axes .*\(2,\) float32"),
    "any": (lambda: t(2, 2).any((0, -2)), ValueError, r"any: axis \(0, -2\) names an axis twice"),
    "argmax": (lambda: t(2, 0).argmax(1), ValueError, r"argmax: .*empty axis is undefined .*\(2, 0\) float32"),
    "logical_and": (lambda: t(2) & t(2), TypeError, r"logical_and: expected booleans, got float32; .*\(x > 0\) &"),
    "logical_or": (
        lambda: t(2, dtype=bool) | t(3, dtype=bool),
        ValueError,
        r"logical_or: shapes \(2,\) and \(3,\) do not broadcast together",
    ),
    "logical_not": (lambda: ~t(2), TypeError, "logical_not: expected booleans, got float32"),
    "cos": (lambda: ops.cos(t(2, dtype=int)), TypeError, "cos: the result would silently become float64"),
    "sin": (lambda: ops.sin(t(2, dtype=int)), TypeError, "sin: the result would silently become float64"),
    "expm1": (lambda: ops.expm1(t(2, dtype=int)), TypeError, "expm1: the result would silently become float64"),
    "log1p": (lambda: ops.log1p(t(2, dtype=int)), TypeError, "log1p: the result would silently become float64"),
    "silu": (lambda: ops.silu(t(2, dtype=int)), TypeError, "silu: expected floating-point values, got int64"),
    "std": (lambda: t(2, 1).std(1, ddof=1), ValueError, "std: the variance needs more than ddof=1 values, got 1"),
    "norm": (lambda: ops.norm(t(2, dtype=int)), TypeError, "norm: expected floating-point values, got int64"),
    "cumsum": (lambda: t(2).cumsum(1), ValueError, r"cumsum: axis 1 is out of range for 1 axes .*\(2,\) float32"),
    "tril": (lambda: ops.tril(t(2)), ValueError, r"tril: x needs at least two axes, got shape \(2,\)"),
    "topk": (
        lambda: ops.topk(t(2, 3), 4),
        ValueError,
        r"topk: k must be in \[1, 3\] for axis -1 of shape \(2, 3\), got 4",
    ),
    "einsum": (
        lambda: ops.einsum("ij,jk->ik", t(2, 3), t(4, 5)),
        ValueError,
        "einsum: all axes 'j' must have one size, got 3 and 4",
    ),
    "split": (lambda: ops.split(t(3), 2), ValueError, r"split: axis 0 of shape \(3,\) does not divide into 2"),
    "pad": (lambda: ops.pad(t(2, 3), ((1, 1), (0, -1))), ValueError, r"pad: pad_width must give .* axes of \(2, 3\)"),
    "flip": (lambda: ops.flip(t(3), 1), ValueError, r"flip: axis 1 is out of range for 1 axes .*\(3,\) float32"),
    "getitem": (lambda: t(3)[5], IndexError, r"getitem: index 5 is out of bounds.*\(3,\) float32"),
    "take_along_axis": (
        lambda: ops.take_along_axis(t(2, 3), [[3], [0]]),
        IndexError,
        r"take_along_axis: indices must be in \[-3, 2\], got 0 to 3",
    ),
    "matmul": (lambda: t(2, 3) @ t(4, 5), ValueError, r"matmul: the last axis of a \(2, 3\) must match .* b \(4, 5\)"),
    "linear": (
        lambda: ops.linear(t(2, 3), t(4, 5)),
        ValueError,
        r"linear: weight must have shape \(out, 3\) to match the last axis of x \(2, 3\), got \(4, 5\)",
    ),
    "conv2d": (
        lambda: ops.conv2d(t(2, 3, 8, 8), t(4, 5, 3, 3)),
        ValueError,
        r"conv2d: weight must have shape .* got \(4, 5, 3, 3\) for 3 channels with groups=1",
    ),
    "batch_norm": (
        lambda: ops.batch_norm(t(2, 3, 8, 8), t(8), t(3)),
        ValueError,
        r"batch_norm: weight must have shape \(3,\) to match axis 1 of x \(2, 3, 8, 8\), got \(8,\)",
    ),
    "attention": (
        lambda: ops.attention(t(2, 3, 4), t(2, 5, 6), t(2, 5, 6), 2),
        ValueError,
        r"attention: q must have shape \(B, M, d\), k and v \(B, N, d\), got \(2, 3, 4\), \(2, 5, 6\)",
    ),
    "self_attention": (
        lambda: ops.self_attention(t(2, 3, 12), 2, t(3, 3)),
        ValueError,
        "self_attention: mask must be boolean, True where a query may attend, got float32",
    ),
    "query_attention": (
        lambda: ops.query_attention(t(2, 4), t(2, 3, 4), t(4, 4), t(4), t(4, 3), t(4), 2),
        ValueError,
        r"query_attention: weight_v must have shape \(4, 4\), got \(4, 3\)",
    ),
    "talking_heads_attention": (
        lambda: ops.talking_heads_attention(t(2, 3, 12), t(3, 3), t(3), t(3, 3), t(3)),
        ValueError,
        "talking_heads_attention: a width of 4 is not divisible by 3 heads",
    ),
    "softmax": (
        lambda: ops.softmax(t(3), 1),
        ValueError,
        r"softmax: axis 1 is out of range for 1 axes.*\(3,\) float32",
    ),
    "log_softmax": (lambda: ops.log_softmax(t(2, dtype=int)), TypeError, "log_softmax: expected floating-point values"),
    "affine": (
        lambda: ops.affine(t(2, 3, 4), t(3), t(4)),
        ValueError,
        r"affine: x \(2, 3, 4\) needs a weight of shape \(4,\) and a shift of that shape or its own, got .*",
    ),
    "token_linear": (
        lambda: ops.token_linear(t(2, 3, 4), t(5, 4), t(5)),
        ValueError,
        r"token_linear: x must have shape \(B, N, d\), weight \(M, N\) and bias \(M,\), got \(2, 3, 4\), \(5, 4\) .*",
    ),
    "linear_residual": (
        lambda: ops.linear_residual(t(2, 3, 4), t(2, 5), t(4, 5), t(4), t(4)),
        ValueError,
        r"linear_residual: x \(2, 3, 4\) needs h of shape \(2, 3, 'in'\) and a weight .*, got \(2, 5\) and \(4, 5\)",
    ),
    "layer_norm": (
        lambda: ops.layer_norm(t(8, 196, 192), t(196), t(192)),
        ValueError,
        r"layer_norm: weight must have shape \(192,\) to match the last axis of x \(8, 196, 192\), got \(196,\)",
    ),
    "gelu": (lambda: ops.gelu(t(2, dtype=int)), TypeError, "gelu: expected floating-point values, got int64"),
    "dropout": (lambda: ops.dropout(t(2), 1.5, Stream()), ValueError, r"dropout: rate must be in \[0, 1\), got 1.5"),
    "drop_path": (
        lambda: ops.drop_path(t(), 0.5, Stream()),
        ValueError,
        r"drop_path: x needs a first axis of samples, got shape \(\)",
    ),
    "cross_entropy": (
        lambda: ops.cross_entropy(t(2, 3), [0, 3]),
        IndexError,
        r"cross_entropy: class indices must be in \[0, 2\], got 0 to 3",
    ),
    "bce_with_logits": (
        lambda: ops.bce_with_logits(t(2, 3), [0, 1]),
        ValueError,
        r"bce_with_logits: targets must have shape \(2, 3\) to match the logits, got \(2,\)",
    ),
    "kl_div": (lambda: ops.kl_div(t(2, 3), t(2, 4)), ValueError, r"kl_div: p must have shape \(2, 3\) .* got \(2, 4\)"),
}
