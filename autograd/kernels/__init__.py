"""Fused array functions: arrays in, arrays out, no Tensor. `autograd.ops` wraps them.

affine         a scale and a shift of each channel
attention      attention and talking-heads attention, and the mixing of heads
batch_norm     batch normalisation
convolution    convolution as matrix products
cross_entropy  loss and gradient at once
depthwise      convolution of every channel by itself
exponential    the fastest exponential of this NumPy
fused_heads    talking heads on a GPU
gather         many arrays copied in one launch on a GPU
gelu           GELU with its derivative, and erf
gemm           matrix products by cuBLAS
heads          the layout of attention heads
im2col         convolution as matrix products on a GPU
lamb           LAMB
layer_norm     layer normalisation
masked         values where a mask is True
moments        mean and variance of each channel
optim          AdamW, the moving average, and sums of squares
parts          sums over many rows on a GPU
product        matrix products
query          attention of one query, without keys and values
residual       the end of a residual branch
sigmoid        sigmoid
softmax        softmax, log_softmax, logsumexp
sum_products   the gradient of a factor that was broadcast
sums           accurate sums and means, and fast ones over rows and columns
token_linear   a linear layer along the tokens
windows        the values under a convolution's kernel
launch         compiling and launching CUDA kernels

Every file has one order: the formula, the NumPy body, the CUDA body, and a function that chooses (and launches). The
NumPy body takes CuPy's arrays too; functions without a CUDA body have no other.
"""

from .affine import affine, affine_grad
from .attention import (
    attention,
    attention_grad,
    self_attention,
    self_attention_grad,
    talking_heads,
    talking_heads_grad,
)
from .batch_norm import batch_norm, batch_norm_grad
from .convolution import conv2d, conv2d_grad_input, conv2d_grad_weight
from .cross_entropy import cross_entropy
from .gather import gather
from .gelu import erf, gelu
from .lamb import lamb
from .layer_norm import layer_norm, layer_norm_grad
from .masked import masked, positive
from .moments import moments
from .optim import adamw, move_average, squares
from .product import product
from .query import query_attention, query_attention_grad
from .residual import linear_residual, linear_residual_grad
from .sigmoid import sigmoid, sigmoid_grad
from .softmax import log_softmax, log_softmax_grad, logsumexp, softmax, softmax_grad
from .sum_products import sum_products
from .sums import as_rows, centred, mean, row_dots, sum_over_rows, total, widened
from .token_linear import token_linear, token_linear_grad
from .windows import Geometry

__all__ = [
    "Geometry", "adamw", "affine", "affine_grad", "as_rows", "attention", "attention_grad", "batch_norm",
    "batch_norm_grad", "centred", "conv2d", "conv2d_grad_input", "conv2d_grad_weight", "cross_entropy", "erf",
    "gather", "gelu", "lamb", "layer_norm", "layer_norm_grad", "linear_residual", "linear_residual_grad",
    "log_softmax", "log_softmax_grad", "logsumexp", "masked", "mean", "moments", "move_average", "positive",
    "product", "query_attention", "query_attention_grad", "row_dots", "self_attention", "self_attention_grad",
    "sigmoid", "sigmoid_grad", "softmax", "softmax_grad", "squares", "sum_over_rows", "sum_products",
    "talking_heads", "talking_heads_grad", "token_linear", "token_linear_grad", "total", "widened",
]  # fmt: skip
