"""Chapters 11 and 12: the training step, and training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .cait import cait
from .layers import Weights
from .loss import CrossEntropy, one_hot
from .optim import Optimiser, learning_rate
from .tensor import Tensor

LossOf = Callable[[Weights, np.ndarray, np.ndarray], Tensor]


def loss_and_gradients(
    loss_of: LossOf, w: Weights, images: np.ndarray, targets: np.ndarray, micro_batch: int
) -> tuple[float, dict[str, np.ndarray]]:
    """11.1  The loss of a batch and the gradient of every weight, computed in pieces of at most `micro_batch` images.

    loss_of  loss_of(w, images, targets) is a Tensor: the mean loss of the images it is given
    returns  the mean loss over the whole batch, and its gradients by the names in w

    The last piece may be smaller, and then it counts for less. Gradients of an earlier step may still be in `.grad`.
    A weight that the loss does not depend on has a gradient of zeros.

    Example: any micro_batch gives the same loss and gradients, but for rounding; only the memory differs.
    """
    raise NotImplementedError("11.1")


def train(
    w: Weights, heads: int, images: np.ndarray, labels: np.ndarray, steps: int, batch_size: int, peak: float, seed: int
) -> list[float]:
    """12.1  Train a CaiT with the weights w, in place, and return the loss of every step.

    images  (n, 3, H, W) float32, normalised, of which each step takes `batch_size` at random
    labels  (n,) integers; the number of classes C is in the shape of w["head.bias"]
    peak    of the learning rate, which warms up over the first tenth of the steps

    You have the parts: one_hot, cait, CrossEntropy (without smoothing), loss_and_gradients, learning_rate and
    Optimiser. Draw the images of a step with rng.integers(len(images), size=batch_size), from one
    rng = np.random.default_rng(seed).

    The check starts from `initial_weights` in cait.py, measures the accuracy on new images, and computes the loss of
    the first step and after the last one itself.
    """
    raise NotImplementedError("12.1")
