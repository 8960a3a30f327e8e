"""Every operation, with NumPy's names and argument order.

arithmetic    binary operations with broadcasting
elementwise   unary operations and clipping
conversion    another dtype or device
reduction     sums, means, norms and extremes over axes, running sums
shape         reshaping, transposing, joining, padding, triangles
indexing      indexing, splitting, the largest values
matmul        matrix products and linear layers
einsum        sums of products in Einstein's notation
nn            softmax, layer norm, a scale and shift of channels, GELU, SiLU, dropout
batch_norm    batch normalisation
conv          two-dimensional convolution
attention     multi-head attention, self-attention and talking-heads attention
residual      the fused end of a residual branch
loss          cross-entropy, binary cross-entropy, KL divergence
logic         and, or, not, any, all, argmax: results without a gradient
arguments     checks and conversions that operations share

Each operation is a `Function` with `forward` and `backward` side by side, and a public function that applies it.
"""

from .arithmetic import add, divide, maximum, minimum, multiply, pow, subtract, where
from .attention import attention, query_attention, self_attention, talking_heads_attention
from .batch_norm import batch_norm
from .conv import conv2d
from .conversion import astype, to_device
from .einsum import einsum
from .elementwise import abs, clip, cos, erf, exp, expm1, log, log1p, negative, relu, sigmoid, sin, sqrt, tanh
from .indexing import getitem, split, take_along_axis, topk
from .logic import all, any, argmax, logical_and, logical_not, logical_or
from .loss import bce_with_logits, cross_entropy, kl_div
from .matmul import linear, matmul, token_linear
from .nn import affine, drop_path, dropout, gelu, layer_norm, log_softmax, silu, softmax
from .reduction import cumsum, logsumexp, max, mean, min, norm, std, sum, var
from .residual import linear_residual
from .shape import broadcast_to, concat, expand_dims, flip, pad, reshape, squeeze, stack, swapaxes, transpose, tril

__all__ = [
    "abs", "add", "affine", "all", "any", "argmax", "astype", "attention", "batch_norm", "bce_with_logits",
    "broadcast_to", "clip", "concat", "conv2d", "cos", "cross_entropy", "cumsum", "divide", "drop_path", "dropout",
    "einsum", "erf", "exp", "expand_dims", "expm1", "flip", "gelu", "getitem", "kl_div", "layer_norm", "linear",
    "linear_residual", "log", "log1p", "log_softmax", "logical_and", "logical_not", "logical_or", "logsumexp",
    "matmul", "max", "maximum", "mean", "min", "minimum", "multiply", "negative", "norm", "pad", "pow",
    "query_attention", "relu", "reshape", "self_attention", "sigmoid", "silu", "sin", "softmax", "split", "sqrt",
    "squeeze", "stack", "std", "subtract", "sum", "swapaxes", "take_along_axis", "talking_heads_attention", "tanh",
    "to_device", "token_linear", "topk", "transpose", "tril", "var", "where",
]  # fmt: skip
