"""A small model, its data, a recipe with everything in it, and the state of a trainer, for the tests of training."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import autograd as ag
from autograd import Tensor, random
from minicait.data import Shapes
from minicait.data.loader import Loader
from minicait.models.cait import CaiT
from minicait.models.model import Outputs
from minicait.train import Recipe

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 10, "layer_scale": 0.5}
PLAIN = Recipe(epochs=1, batch_size=8, lr=1e-3, clip_norm=1.0, ema_decay=0.99)
FULL = Recipe(
    epochs=3, batch_size=8, lr=1e-3, constant_lr=False, warmup_epochs=0.5, clip_norm=1.0, label_smoothing=0.1,
    mixup=0.8, cutmix=1.0, ema_decay=0.99, accumulate=2,
)  # fmt: skip
ROUNDING = ("proj_l.bias", "attn.k.bias")  # parameters whose gradient is rounding error, which Adam amplifies


def small(**changes):
    return CaiT(**SMALL | changes)


def loaders(batch_size=8, threads=None):
    train, val = Shapes(44, 16), Shapes(20, 16, seed=1)
    return Loader(train, batch_size, training=True, threads=threads), Loader(val, 8, threads=threads)


def some_batches(count=1):
    batches = loaders(threads=0)[0].epoch(0)
    return [next(batches) for _ in range(count)]


def state(trainer):
    """Copies of all arrays of a trainer: weights, buffers, moments, the EMA and accumulated gradients."""
    parts = {
        "model": trainer.model.state_dict(),
        "mean": trainer.optimiser.mean,
        "square": trainer.optimiser.square,
        "ema": {} if trainer.ema is None else {**trainer.ema.average, **trainer.ema.buffers},
        "accumulated": trainer.accumulated or {},
    }
    return {f"{part}/{name}": np.array(array) for part, arrays in parts.items() for name, array in arrays.items()}


def assert_same(a, b):
    """The same names and the same bits."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def spoiled(images):
    """Images of which one is not finite."""
    images = images.copy()
    images[3, 0, 0, 0] = np.nan
    return images


class Overflow(ag.Function):
    """The identity, with a gradient that is not finite (NaN, since NumPy warns of infinity)."""

    @staticmethod
    def forward(ctx, x):
        return x.copy()

    @staticmethod
    def backward(ctx, g):
        return np.full_like(g, np.nan)


@dataclass
class Overflowing:
    """An objective whose loss stays as it is and whose gradients overflow, in the batches with these numbers (from 0).

    With `in_loss`, it is the other way round: the gradients stay as they are and the loss is infinite.
    """

    objective: Any
    numbers: frozenset[int]
    in_loss: bool = False
    is_mean: ClassVar[bool] = True

    def __call__(self, outputs: Outputs, targets: Any) -> Tensor:
        if random.current().step not in self.numbers:
            return self.objective(outputs, targets)
        if self.in_loss:
            return self.objective(outputs, targets) + np.float32(np.inf)
        return self.objective(outputs._replace(logits=Overflow.apply(outputs.logits)), targets)


def overflowing(trainer, *numbers, in_loss=False):
    """The trainer, in whose batches with these numbers (from 0) gradients overflow."""
    trainer.objective = Overflowing(trainer.objective, frozenset(numbers), in_loss)
    return trainer
