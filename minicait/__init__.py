"""CaiT, "Going deeper with Image Transformers", on the `autograd` engine beside this package.

nn         layers: linear, norms, patch embedding, three kinds of attention; `record` sees inside
models     the table of models, CaiT itself, and the variants it is compared with
weights    weights in and out of files; `pth` reads PyTorch's, `published` downloads the authors'
trained    a model from its weights
data       images: shapes, Imagenette, folders; crops and colours, batches on threads, mixing
optim      AdamW, its schedule, clipping, the average of the weights
train      gradients by micro-batches on threads, recipes, the trainer, runs
explain    what a model sees, and the report about it
cli        the command line
"""

import autograd

if getattr(autograd, "BELONGS_TO", None) != "minicait":
    raise ImportError(
        f"minicait needs the `autograd` package that it ships with, but found another one at "
        f"{getattr(autograd, '__file__', None)}. Fix: pip uninstall -y autograd, then install minicait again "
        "(pip install -e . in its folder), best in a fresh virtual environment."
    )

__version__ = "0.1.0"

from . import models, nn, optim, train
from .data import imagenet_classes
from .files.pretrained import load_model
from .files.weights import load_weights, save_weights
from .models import create_model, list_models
from .nn.record import record

__all__ = [
    "create_model",
    "imagenet_classes",
    "list_models",
    "load_model",
    "load_weights",
    "models",
    "nn",
    "optim",
    "record",
    "save_weights",
    "train",
]
