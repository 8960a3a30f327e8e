"""From numbers to colours: cividis, even in lightness and the same to colour-blind eyes."""

from __future__ import annotations

import numpy as np

# from dark blue to yellow, by ten of its colours; what is between them is mixed
SCALE = np.array([(0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115), (138, 134, 120),
                  (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56)], np.float64)  # fmt: skip


def stretched(values: np.ndarray) -> np.ndarray:
    """(x - min) / (max - min): from 0 to 1, as in the paper's figures. What is flat becomes 0."""
    return (values - values.min()) / max(float(values.max() - values.min()), 1e-12)


def coloured(values: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1, of any shape, as colours in uint8 with an axis more."""
    place = values * (len(SCALE) - 1)
    below = np.minimum(place.astype(int), len(SCALE) - 2)
    return (SCALE[below] + (place - below)[..., None] * (SCALE[below + 1] - SCALE[below])).astype(np.uint8)
