"""Gate: what stands between the gradients and the weights: clipping, and dynamic loss scaling (a GradScaler)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autograd import kernels
from autograd.backend import Array, device_of, to_device
from autograd.kernels.judge import LOSSES, SCALE, Known

from .adamw import EMA, AdamW, on_device, squares

FIRST_SCALE, MOST_SCALE = 2.0**16, 2.0**24
ROOM = 512  # losses that may wait to be read


class Gate:
    """It lets a step through, shortened if its gradient is too long, or not at all if that is not finite.

    What it knows is in two small arrays on the device of the weights, so that nobody waits for a GPU until somebody
    asks: `pace`, by which AdamW and the average of the weights move, and a memory.

    With `scaled`, the loss is multiplied by a scale, and a step that is not finite is left out: as if it had never been
    tried, but for the scale, which is halved. After many good steps it is doubled. Otherwise, or where even a scale of
    1 is too much, the batch has failed: nothing moves from then on, until the gate is restored.
    """

    def __init__(self, optimiser: AdamW, ema: EMA | None, clip: float | None = None, scaled: bool = False) -> None:
        self.optimiser, self.ema = optimiser, ema
        decay = 1.0 if ema is None else ema.decay
        most = MOST_SCALE if scaled else 1.0
        self.rules = kernels.Rules(math.inf if clip is None else clip, most, betas=optimiser.betas, ema_decay=decay)
        self.pace = on_device([0.0] * 4, optimiser.parameters)
        self.memory = to_device(np.zeros(LOSSES + ROOM), device_of(self.pace))
        self.unread = 0  # losses
        self.restore(Known(FIRST_SCALE if scaled else 1.0))

    @property
    def scale(self) -> Array | None:
        """What to multiply the next loss by: (1,), on the device; None if it is always 1."""
        return None if self.rules.max_scale == 1 else self.memory[SCALE : SCALE + 1]

    def judge(self, loss: Array, gradients: Mapping[str, Array], batch: int, last: bool = True) -> None:
        """Of batch number `batch` (from 1). Of the last one of a step, the gradients are those of the whole step."""
        parts = squares(gradients)
        kernels.judge(self.memory, self.pace, loss, parts, batch, self.unread, last, self.rules)
        self.unread += 1

    def read(self) -> list[float]:
        """The losses since it was last asked, and what is `known`, in one copy from the device, which waits for it."""
        seen = to_device(self.memory[: LOSSES + self.unread], "cpu").tolist()
        self.unread = 0
        self._know(Known(*seen[:LOSSES]))
        return seen[LOSSES:]

    def restore(self, known: Known) -> None:
        """Go on from what was known."""
        self._know(known)
        self.memory[:LOSSES] = to_device(np.array(known), device_of(self.memory))

    def _know(self, known: Known) -> None:
        self.known = known
        self.optimiser.steps = int(known.steps)
        if self.ema is not None:
            self.ema.steps = self.optimiser.steps
