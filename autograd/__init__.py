"""A small reverse-mode autograd on NumPy (and CuPy), written to be read.

tensor      Tensor: an array, its gradient and the operation that produced it
function    Function: forward and backward of one operation, side by side
ops/        every differentiable operation
kernels/    fused array functions behind some of them
engine      backward() and grad(): the chain rule over the recorded graph
draw/       the graph behind a Tensor as an SVG picture
gradcheck   check_grads: analytic against numerical gradients
numerical   slopes from five points, and steps that suit a value
contract    what every backward must do, whatever its operation
cases       one table of test cases for every operation
samples     inputs for them
checkpoint  recompute activations instead of storing them
modes       no_grad, autocast, detect_anomaly
anomaly     the checks behind detect_anomaly
random      reproducible streams of random numbers
backend     NumPy or CuPy, host or device
cuda        the only file that imports CuPy
"""

from .tensor import Tensor  # isort: skip  (first: it imports what its methods need in the right order)
from . import ops, random
from .anomaly import AnomalyError
from .checkpoint import checkpoint
from .cuda import cuda_available
from .draw import draw
from .engine import grad
from .function import Context, Function
from .gradcheck import GradientError, KinkError, check_grads
from .modes import autocast, detect_anomaly, inherit_modes, no_grad

BELONGS_TO = "minicait"  # distinguishes this package from HIPS autograd, see minicait/__init__.py

__all__ = [
    "AnomalyError", "Context", "Function", "GradientError", "KinkError", "Tensor", "autocast", "check_grads",
    "checkpoint", "cuda_available", "detect_anomaly", "draw", "grad", "inherit_modes", "no_grad", "ops", "random",
]  # fmt: skip
