"""Vision transformers, starting with CaiT, on the `autograd` engine beside this package.

nn           layers and residual branches; `record` looks inside
models       what a model is, and one file for each family
optim        AdamW, LAMB, learning-rate schedule, loss scaler, EMA
data         images: sources, augmentation, batches, mixing
train        the trainer, gradients by micro-batches, objectives, recipes
run          plan, folder and console output of a training run
files        weights in and out of files, downloads
explain      attention maps, and the report on them
experiments  small models side by side
learn        build it yourself: exercises and their checks
bench        speed and memory, beside PyTorch
selftest     tests of this machine and its GPU
cli          the command line
machine      CPUs, threads and memory
schema       plain data with types that are checked
text         names from strangers, made safe to print
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_engine = find_spec("autograd")
if _engine is None or _engine.origin is None or b"BELONGS_TO" not in Path(_engine.origin).read_bytes():
    raise ImportError(
        f"minicait needs the `autograd` package that it ships with, but found another one at "
        f"{getattr(_engine, 'origin', None)}. Fix: pip uninstall -y autograd, then install minicait again "
        "(pip install -e . in its folder), best in a fresh virtual environment."
    )

if TYPE_CHECKING:
    from . import data, explain, files, models, nn, optim, run, train
    from .data import imagenet_classes
    from .files.pretrained import load_model
    from .files.weights import load_weights, save_weights
    from .models import create_model, list_models
    from .nn.record import record

__all__ = [
    "create_model", "data", "explain", "files", "imagenet_classes", "list_models", "load_model", "load_weights",
    "models", "nn", "optim", "record", "run", "save_weights", "train",
]  # fmt: skip

_HOME = {  # of each function; the other names are packages
    "create_model": "models", "imagenet_classes": "data", "list_models": "models", "load_model": "files.pretrained",
    "load_weights": "files.weights", "record": "nn.record", "save_weights": "files.weights",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: so the command line is in charge before NumPy and all else is loaded."""
    if name not in __all__:
        raise AttributeError(f"module 'minicait' has no attribute {name!r}")
    module = import_module(f".{_HOME.get(name, name)}", __name__)
    globals()[name] = getattr(module, name) if name in _HOME else module
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
