"""From numbers to colours, also for colour-blind eyes: cividis, even in lightness; blue and orange for signs."""

from __future__ import annotations

import numpy as np

# from dark blue to yellow, by ten of its colours; what is between them is mixed
SCALE = np.array([(0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115), (138, 134, 120),
                  (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56)], np.float64)  # fmt: skip

# for numbers with a sign: from blue over white, which is 0, to orange
SIGNED = np.array([(5, 60, 130), (45, 115, 185), (140, 185, 220), (248, 248, 248), (245, 180, 110), (215, 110, 20),
                   (135, 60, 0)], np.float64)  # fmt: skip


def stretched(values: np.ndarray) -> np.ndarray:
    """(x - min) / (max - min): from 0 to 1, as in the paper's figures. What is flat becomes 0."""
    return (values - values.min()) / max(float(values.max() - values.min()), 1e-12)


def around_zero(values: np.ndarray) -> np.ndarray:
    """(1 + x / max |x|) / 2: from 0 to 1, where 0 becomes 1/2, the middle of a scale for signed numbers."""
    return 0.5 + values / max(2 * float(np.abs(values).max()), 1e-12)


def coloured(values: np.ndarray, scale: np.ndarray = SCALE) -> np.ndarray:
    """Numbers from 0 to 1, of any shape, as colours in uint8 with an axis more."""
    place = values * (len(scale) - 1)
    below = np.minimum(place.astype(int), len(scale) - 2)
    return (scale[below] + (place - below)[..., None] * (scale[below + 1] - scale[below])).astype(np.uint8)
