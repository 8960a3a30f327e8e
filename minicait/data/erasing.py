"""Random erasing (Zhong et al., 2020): a box of noise, so that a model cannot rely on a single part of an object."""

from __future__ import annotations

import math

import numpy as np

from .crops import Range
from .mixing import Box


def random_erasing(
    image: np.ndarray, rng: np.random.Generator, probability: float, area: Range = (0.02, 1 / 3), aspect: float = 0.3
) -> None:
    """Fill a random box of a normalised image (3, H, W) with standard normal noise, in place."""
    if rng.random() >= probability:
        return
    channels, height, width = image.shape
    box = box_to_erase(height, width, rng, area, aspect)
    if box is not None:
        top, bottom, left, right = box
        shape = channels, bottom - top, right - left
        image[:, top:bottom, left:right] = rng.standard_normal(shape, dtype=np.float32)


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
