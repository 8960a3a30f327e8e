"""Dynamic loss scaling, as in PyTorch's GradScaler."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .parameters import FlatArrays

FIRST_SCALE, MAX_SCALE = 2.0**16, 2.0**24
GROWTH_INTERVAL = 2000  # steps without overflow before the scale is doubled


class LossScaler:
    """A factor on the loss, so that small gradients do not vanish in float16.

    A step whose gradients overflow is skipped and the scale halved; after many steps without overflow it is doubled.
    Disabled, the scale is 1 for ever. All scales are powers of two, so scaling changes no digit of what does not
    overflow or vanish.
    """

    def __init__(self, enabled: bool) -> None:
        self.scale = FIRST_SCALE if enabled else 1.0
        self.max_scale = MAX_SCALE if enabled else 1.0
        self.growth_interval = GROWTH_INTERVAL
        self.good = 0  # steps towards the next doubling
        self.skipped = 0  # steps

    def unscale(self, gradients: FlatArrays) -> None:
        """Divide the gradients by the scale, in place."""
        if self.scale != 1:
            gradients.array *= 1 / self.scale

    @property
    def exhausted(self) -> bool:
        """True if no smaller scale can help."""
        return self.scale <= 1

    def accepts(self, norm: float) -> bool:
        """Adjust the scale to gradients of this norm; False if they overflowed and the step must be skipped."""
        if math.isfinite(norm):
            self.good += 1
            if self.good >= self.growth_interval:
                self.scale, self.good = min(2 * self.scale, self.max_scale), 0
            return True
        self.scale, self.good = max(1.0, self.scale / 2), 0
        self.skipped += 1
        return False

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self.good, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        scale, good, skipped = (state.get(name, -1) for name in ("scale", "good", "skipped"))
        if not (1 <= scale <= self.max_scale and good >= 0 and skipped >= 0):
            raise ValueError(f"a loss scaler cannot have the state {state}")
        self.scale, self.good, self.skipped = float(scale), int(good), int(skipped)
