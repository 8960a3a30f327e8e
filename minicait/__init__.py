"""CaiT, "Going deeper with Image Transformers", on the `autograd` engine beside this package.

nn           layers, attention, residual branches; `record` sees inside
models       what a model is, CaiT, and the variants it is compared with
optim        AdamW, its schedule, clipping, loss scaling, the average of the weights
data         images: shapes, Imagenette, folders; augmentation, batches on threads, mixing
train        the trainer, gradients by micro-batches, objectives, recipes, checkpoints
run          what the command line adds to a trainer: plan, folder, console, pictures
files        weights in and out of files, published weights, downloads
explain      what a model sees, and the report about it
experiments  small models side by side
bench        speed and memory, also beside PyTorch
selftest     does everything work on this machine?
cli          the command line
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
