"""Chapter 10: the loss."""

from __future__ import annotations

import numpy as np

from .tensor import Context, Function


class CrossEntropy(Function):
    """L = -1/B sum_b sum_c t_bc log softmax(x_b)_c, the mean over B samples"""

    @staticmethod
    def forward(ctx: Context, logits: np.ndarray, targets: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
        """10.1  The mean loss of B samples: one number, as an array of shape () and of the dtype of the logits.

        logits   (B, C): one row for each sample
        targets  (B, C): probabilities, whose rows sum to 1; they stay as they are

        Label smoothing s spreads a share of each target over all C classes: t becomes (1 - s) t + s / C.
        Logits may be as large as 10,000: subtract the largest of a row before you take exponentials.

        Example: logits of zeros have the loss log(C), whatever the targets are.
        """
        raise NotImplementedError("10.1")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        """10.1  The gradient of the logits (B, C). Only they get one: the targets are a setting, not an input.

        For one sample, dL/dx = softmax(x) - t, with the smoothed t.
        """
        raise NotImplementedError("10.1")


# ---- given


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Targets (B, classes) from labels (B,)."""
    return np.eye(classes, dtype=np.float32)[labels]
