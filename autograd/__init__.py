"""A small reverse-mode autograd on NumPy (and CuPy), written to be read.

tensor      an array, its gradient and the operation that made it
function    how an operation is declared: forward and backward beside each other
ops         the operations
kernels     the fused array functions behind some of them
engine      backward() and grad(): the chain rule over the recorded graph
draw        the graph behind a Tensor as a picture; layout and svg serve it
gradcheck   check_grads: analytic against numerical gradients
checkpoint  recompute instead of store
modes       no_grad, autocast, detect_anomaly
random      reproducible streams of random numbers
backend     NumPy or CuPy; cuda is the only file that imports CuPy
"""

from .tensor import Tensor  # isort: skip  (first: Tensor brings in what its methods need, in the right order)
from . import ops, random
from .anomaly import AnomalyError
from .checkpoint import checkpoint
from .cuda import cuda_available
from .draw import draw
from .engine import grad
from .function import Context, Function
from .gradcheck import GradientError, KinkError, check_grads
from .modes import autocast, detect_anomaly, inherit_modes, no_grad

BELONGS_TO = "minicait"  # tells this package from the other one of the same name, see minicait/__init__.py

__all__ = [
    "AnomalyError", "Context", "Function", "GradientError", "KinkError", "Tensor", "autocast", "check_grads",
    "checkpoint", "cuda_available", "detect_anomaly", "draw", "grad", "inherit_modes", "no_grad", "ops", "random",
]  # fmt: skip
