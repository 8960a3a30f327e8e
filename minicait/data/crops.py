"""Crops and colour jitter."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageEnhance

Box = tuple[int, int, int, int]  # left, top, right, bottom, as in Pillow
Range = tuple[float, float]


def resized_crop_box(
    width: int, height: int, rng: np.random.Generator, scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)
) -> Box:
    """Draw a random box by area and aspect ratio (width / height), to be cropped and then resized to a square.

    Crop first: `resize(..., box=box)` would blend pixels from outside the box into its border.
    """
    for _ in range(10):
        area = rng.uniform(*scale) * (width * height)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return left, top, left + w, top + h
    # an elongated image, into which few boxes fit: take the largest central box of an allowed aspect ratio
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def padded_crop(image: Image.Image, rng: np.random.Generator, padding: int) -> Image.Image:
    """Shift an image by up to `padding` pixels along each axis and fill with black."""
    top, left = (int(start) for start in rng.integers(2 * padding + 1, size=2))
    left, top = left - padding, top - padding
    return image.crop((left, top, left + image.width, top + image.height))


def shrink(image: Image.Image, side: int) -> Image.Image:
    """Downscale an image so that its shorter side is at most `side` pixels long."""
    if min(image.size) <= side:
        return image
    factor = side / min(image.size)
    width, height = (max(side, round(edge * factor)) for edge in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def centre_crop(image: Image.Image, side: int, ratio: float = 1.0) -> Image.Image:
    """Resize the shorter side to `side` / `ratio` pixels and cut out the central `side` x `side`."""
    if not 0 < ratio <= 1:
        raise ValueError(f"centre_crop: ratio must be more than 0 and at most 1, got {ratio}")
    if image.size == (side, side) and ratio == 1:
        return image
    resized_side, shorter = math.floor(side / ratio), min(image.size)
    width, height = (resized_side * length // shorter for length in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + side, top + side))


def colour_jitter(image: Image.Image, rng: np.random.Generator, strength: float) -> Image.Image:
    """Scale brightness, contrast and saturation by 1 - strength to 1 + strength each, in random order."""
    enhancements = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    order = rng.permutation(3)
    factors = rng.uniform(max(0.0, 1 - strength), 1 + strength, size=3)
    for i in order:
        image = enhancements[i](image).enhance(float(factors[i]))
    return image
