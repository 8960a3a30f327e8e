"""Optimisation: all parameters as one array, AdamW, the learning-rate schedule, the loss scaler, EMA of the weights."""

from .adamw import EMA, AdamW, clip_gradients, global_norm, learning_rate, on_device, squares

__all__ = ["EMA", "AdamW", "clip_gradients", "global_norm", "learning_rate", "on_device", "squares"]
