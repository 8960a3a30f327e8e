"""Random erasing (Zhong et al., 2020): a box of noise, so that a model cannot rely on a single part of an object."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .crops import Range
from .mixing import Box

AREA: Range = (0.02, 1 / 3)  # of a box, as a fraction of the image's
ASPECT = 0.3  # least height / width of a box


class Erased(NamedTuple):
    """A box of an image, and the noise that fills it."""

    box: Box
    noise: np.ndarray  # (3, height, width) float32

    def fill(self, image: np.ndarray) -> None:
        """Write the noise into a normalised image (3, H, W)."""
        top, bottom, left, right = self.box
        image[:, top:bottom, left:right] = self.noise


def random_erasing(
    height: int,
    width: int,
    rng: np.random.Generator,
    probability: float,
    area: Range = AREA,
    aspect: float = ASPECT,
) -> Erased | None:
    """Draw a box and standard normal noise for it; None if nothing is to be erased, or no box fits."""
    if rng.random() >= probability:
        return None
    box = box_to_erase(height, width, rng, area, aspect)
    if box is None:
        return None
    top, bottom, left, right = box
    return Erased(box, rng.standard_normal((3, bottom - top, right - left), dtype=np.float32))


def box_to_erase(height: int, width: int, rng: np.random.Generator, area: Range, aspect: float) -> Box | None:
    """Draw a box by area and height / width in [`aspect`, 1 / `aspect`]; return None if ten draws do not fit."""
    for _ in range(10):
        pixels = rng.uniform(*area) * (height * width)
        proportion = math.exp(rng.uniform(math.log(aspect), math.log(1 / aspect)))
        h, w = round(math.sqrt(pixels * proportion)), round(math.sqrt(pixels / proportion))
        if h < height and w < width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return top, top + h, left, left + w
    return None
