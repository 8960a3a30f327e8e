"""Every differentiable operation, with NumPy's names and argument order.

arithmetic    binary operations with broadcasting
elementwise   unary operations, clipping, conversion to another dtype or device
reduction     sums, means and extremes over axes
shape         reshaping, transposing, joining, padding
indexing      indexing and splitting
matmul        matrix products and linear layers
nn            softmax, layer norm, GELU, dropout
batch_norm    batch normalisation
conv          two-dimensional convolution
attention     multi-head attention, self-attention and talking-heads attention
residual      the fused end of a residual branch
loss          cross-entropy, binary cross-entropy, KL divergence
arguments     checks and conversions that operations share

Each operation is a `Function` with `forward` and `backward` side by side, and a public function that applies it.
"""

from .arithmetic import add, divide, maximum, minimum, multiply, pow, subtract, where
from .attention import attention, self_attention, talking_heads_attention
from .batch_norm import batch_norm
from .conv import conv2d
from .elementwise import abs, astype, clip, erf, exp, log, negative, relu, sigmoid, sqrt, tanh, to_device
from .indexing import getitem, split, take_along_axis
from .loss import bce_with_logits, cross_entropy, kl_div
from .matmul import linear, matmul
from .nn import drop_path, dropout, gelu, layer_norm, log_softmax, softmax
from .reduction import logsumexp, max, mean, min, sum, var
from .residual import linear_residual
from .shape import broadcast_to, concat, expand_dims, flip, pad, reshape, squeeze, stack, swapaxes, transpose

__all__ = [
    "abs", "add", "astype", "attention", "batch_norm", "bce_with_logits", "broadcast_to", "clip", "concat", "conv2d",
    "cross_entropy", "divide", "drop_path", "dropout", "erf", "exp", "expand_dims", "flip", "gelu", "getitem", "kl_div",
    "layer_norm", "linear", "linear_residual", "log", "log_softmax", "logsumexp", "matmul", "max", "maximum", "mean",
    "min", "minimum", "multiply", "negative", "pad", "pow", "relu", "reshape", "self_attention", "sigmoid", "softmax",
    "split", "sqrt",
    "squeeze", "stack", "subtract", "sum", "swapaxes", "take_along_axis", "talking_heads_attention", "tanh",
    "to_device", "transpose", "var", "where",
]  # fmt: skip
