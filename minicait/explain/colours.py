"""Colours that colour-blind readers can use: cividis for magnitudes, blue to orange for signed values, and Okabe and
Ito's for classes.
"""

from __future__ import annotations

import numpy as np

# dark blue to yellow, ten samples
CIVIDIS = np.array([(0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115), (138, 134, 120),
                    (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56)], np.float64)  # fmt: skip

# blue over white, which is 0, to orange
DIVERGING = np.array([(5, 60, 130), (45, 115, 185), (140, 185, 220), (248, 248, 248), (245, 180, 110), (215, 110, 20),
                      (135, 60, 0)], np.float64)  # fmt: skip

CATEGORIES = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
              (204, 121, 167))  # fmt: skip
OTHER = (160, 160, 160)


def rescale(values: np.ndarray, share: float = 1.0) -> np.ndarray:
    """(x - min) / (max - min): from 0 to 1, as in the paper's figures. A constant map becomes 0.

    share  of the values that the scale covers: larger ones become 1
    """
    low, high = values.min(), np.quantile(values, share) if share < 1 else values.max()
    return np.minimum((values - low) / max(float(high - low), 1e-12), 1)


def rescale_around_zero(values: np.ndarray) -> np.ndarray:
    """(1 + x / max |x|) / 2: from 0 to 1, where 0 becomes 1/2, the middle of a diverging colour map."""
    return 0.5 + values / max(2 * float(np.abs(values).max()), 1e-12)


def colourise(values: np.ndarray, colours: np.ndarray = CIVIDIS) -> np.ndarray:
    """Interpolate a colour map at values from 0 to 1, of any shape; returns uint8 with a last axis for RGB."""
    position = values * (len(colours) - 1)
    below = np.minimum(position.astype(int), len(colours) - 2)
    return (colours[below] + (position - below)[..., None] * (colours[below + 1] - colours[below])).astype(np.uint8)
