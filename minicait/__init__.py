"""Vision transformers, starting with CaiT, on the `autograd` engine beside this package.

nn           layers and residual branches; `record` looks inside
models       what a model is, and one file for each family
optim        AdamW, learning-rate schedule, loss scaler, EMA
data         images: sources, augmentation, batches, mixing
train        the trainer, gradients by micro-batches, objectives, recipes
run          plan, folder and console output of a training run
files        weights in and out of files, downloads
explain      attention maps, and the report on them
experiments  small models side by side
bench        speed and memory, beside PyTorch
selftest     tests of this machine and its GPU
cli          the command line
machine      CPUs, threads and memory
"""

import autograd

if getattr(autograd, "BELONGS_TO", None) != "minicait":
    raise ImportError(
        f"minicait needs the `autograd` package that it ships with, but found another one at "
        f"{getattr(autograd, '__file__', None)}. Fix: pip uninstall -y autograd, then install minicait again "
        "(pip install -e . in its folder), best in a fresh virtual environment."
    )

__version__ = "0.2.0"

from . import models, nn, optim, train
from .data import imagenet_classes
from .files.pretrained import load_model
from .files.weights import load_weights, save_weights
from .models import create_model, list_models
from .nn.record import record

__all__ = [
    "create_model", "imagenet_classes", "list_models", "load_model", "load_weights", "models", "nn", "optim", "record",
    "save_weights", "train",
]  # fmt: skip
