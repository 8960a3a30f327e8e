"""Chapter 9: the optimiser and its learning rate."""

from __future__ import annotations

import math

import numpy as np

from .layers import Weights


def adamw(
    theta: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    t: int,
    lr: float,
    decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """9.1  Step t (from 1) of AdamW for an array theta with gradient g: the new theta, m and v.

        m_t = beta_1 m_{t-1} + (1 - beta_1) g          mhat = m_t / (1 - beta_1^t)
        v_t = beta_2 v_{t-1} + (1 - beta_2) g^2        vhat = v_t / (1 - beta_2^t)
        theta_t = theta_{t-1} - lr (mhat / (sqrt(vhat) + eps) + decay theta_{t-1})

    Return theta_t, m_t and v_t, without hats, as new arrays of the dtype of theta; the arguments stay as they are.

    Example: the first step, without decay, moves every value by lr against the sign of its gradient.
    """
    raise NotImplementedError("9.1")


def learning_rate(step: int, total: int, warmup: int, peak: float, start: float = 1e-6, final: float = 1e-5) -> float:
    """9.2  The learning rate of a step, counted from 0.

    During the first `warmup` steps it rises linearly, from `start` at step 0 towards `peak` at step `warmup`. From then
    on it follows half a cosine from `peak` to `final`. The cosine spans all `total` steps, counted from step 0 and not
    from the end of the warm-up, as in DeiT's code. After the last step it stays at `final`.

    Example: learning_rate(50, total=100, warmup=0, peak=1.0, final=0.0) is 0.5.
    """
    raise NotImplementedError("9.2")


# ---- given


class Optimiser:
    """AdamW for all weights. Matrices decay; biases, norms, scales, positions and the class token do not."""

    def __init__(self, w: Weights, decay: float = 0.05) -> None:
        self.w, self.decay, self.t = w, decay, 0
        self.moments = {name: (np.zeros_like(x.data), np.zeros_like(x.data)) for name, x in w.items()}

    def step(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        self.t += 1
        for name, g in gradients.items():
            decays = len(g.shape) > 1 and name not in ("pos_embed", "cls_token")
            theta, m, v = adamw(self.w[name].data, g, *self.moments[name], self.t, lr, self.decay if decays else 0.0)
            self.w[name].data, self.moments[name] = theta, (m, v)
