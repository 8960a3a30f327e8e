"""The size of a micro-batch: a rule, and never a clock, because it determines the last bits of the gradients."""

from __future__ import annotations

from ..models.model import Model
from ..nn import Module

# A micro-batch has at most so many tokens, and saves at most so many bytes for backward, but has enough tokens that
# matrix products run at full rate: 2 images of xxs24 or s24 at 224 pixels, 16 of tiny at 32.
MOST_TOKENS, MOST_BYTES, LEAST_TOKENS = 1024, 150_000_000, 392
MICRO_BATCH = 8  # for a model that does not say what it costs


def default_micro_batch(model: Module, batch: int, training: bool = True) -> int:
    """Images in a micro-batch: what suits the model, and at most half of the batch, so that two CPUs have work.

    training  activations are kept for backward
    """
    size = MICRO_BATCH
    if isinstance(model, Model):
        tokens = model.grid[0] * model.grid[1]
        size = MOST_TOKENS // tokens
        if training:
            size = min(size, MOST_BYTES // model.cost().activation_bytes)
        size = max(size, -(-LEAST_TOKENS // tokens))
    return min(size, max(1, -(-batch // 2)))
