"""3-Augment (Touvron et al., 2022): every image becomes grey, solarised or blurred, by one draw of even chances.

DeiT III was trained with it, with flips before and colour jitter after it, instead of RandAugment and erasing.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter, ImageOps

BLUR = (0.1, 2.0)  # radius in pixels; Pillow approximates a Gaussian by box filters, and the least changes nothing


def three_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Apply exactly one of the three."""
    chosen = rng.integers(3)
    if chosen == 0:
        return grey(image)
    return solarise(image) if chosen == 1 else blur(image, rng.uniform(*BLUR))


def grey(image: Image.Image) -> Image.Image:
    """Keep the luma, in all three channels."""
    return image.convert("L").convert("RGB")


def solarise(image: Image.Image) -> Image.Image:
    """Invert the bright values, from 128 on."""
    return ImageOps.solarize(image, threshold=128)


def blur(image: Image.Image, radius: float) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))
