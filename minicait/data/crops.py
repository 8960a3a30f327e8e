"""Crops and colour jitter."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageEnhance

Box = tuple[int, int, int, int]  # left, top, right, bottom, as in Pillow
Range = tuple[float, float]

MIN_CROP_RATIO = 0.01  # least share of the shorter side that a centre crop keeps
MAX_RESIZED = 1 << 24  # pixels of an image that is resized as a whole: at 224 pixels, one 334 times as long as wide
SUPPORT = 2  # pixels on either side that bicubic interpolation looks at
REFLECTED = 4  # pixels of the border of a simple crop that may be a reflection


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


def padded_crop_box(width: int, height: int, rng: np.random.Generator, padding: int) -> Box:
    """Draw a box as large as the image, shifted by up to `padding` pixels along each axis; outside, a crop is black."""
    top, left = (int(start) - padding for start in rng.integers(2 * padding + 1, size=2))
    return left, top, left + width, top + height


def padded_crop(image: Image.Image, rng: np.random.Generator, padding: int) -> Image.Image:
    """Shift an image by up to `padding` pixels along each axis and fill with black."""
    return image.crop(padded_crop_box(*image.size, rng, padding))


def simple_crop(image: Image.Image, rng: np.random.Generator, side: int) -> Image.Image:
    """Simple random crop (DeiT III): the shorter side resized to `side` pixels, and a square of it anywhere.

    It may reach beyond the border by 4 pixels, where the image is reflected. As in the reference, the place is random
    along both axes; the paper says along one.
    """
    width, height = (side * length // min(image.size) for length in image.size)
    top, left = (int(rng.integers(length - side + 2 * REFLECTED + 1)) - REFLECTED for length in (height, width))
    rows, columns = _reflected(top, side, height), _reflected(left, side, width)
    box = int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
    pixels = np.asarray(_resized_box(image, (width, height), box))
    return Image.fromarray(pixels[rows - box[1]][:, columns - box[0]])


def _reflected(start: int, count: int, length: int) -> np.ndarray:
    """Indices from `start` on into an axis of this length, which is reflected at its ends: 2, 1, 0, 1, 2, ..."""
    period = max(1, 2 * (length - 1))
    index = np.arange(start, start + count) % period
    return np.minimum(index, period - index)


def shrink(image: Image.Image, side: int) -> Image.Image:
    """Downscale an image so that its shorter side is at most `side` pixels long."""
    if min(image.size) <= side:
        return image
    factor = side / min(image.size)
    width, height = (max(side, round(edge * factor)) for edge in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def check_crop_ratio(ratio: float) -> None:
    if not MIN_CROP_RATIO <= ratio <= 1:
        raise ValueError(f"crop_ratio must be from {MIN_CROP_RATIO} to 1, got {ratio}")


def centre_crop(image: Image.Image, side: int, ratio: float = 1.0) -> Image.Image:
    """Resize the shorter side to `side` / `ratio` pixels and cut out the central `side` x `side`."""
    if image.size == (side, side) and ratio == 1:
        return image
    resized, box = centre_crop_box(*image.size, side, ratio)
    return _resized_box(image, resized, box)


def resized_for_centre_crop(image: Image.Image, side: int, ratio: float = 1.0) -> Image.Image:
    """Resize an image as `centre_crop` does before it cuts: from the result it cuts the same pixels."""
    resized, _ = centre_crop_box(*image.size, side, ratio)
    return image.resize(resized, Image.Resampling.BICUBIC) if math.prod(resized) <= MAX_RESIZED else image


def centre_crop_box(width: int, height: int, side: int, ratio: float = 1.0) -> tuple[tuple[int, int], Box]:
    """Return the size that a centre crop resizes an image to, and the box that it cuts out of that."""
    check_crop_ratio(ratio)
    resized_side, shorter = math.floor(side / ratio), min(width, height)
    width, height = (resized_side * length // shorter for length in (width, height))
    left, top = round((width - side) / 2), round((height - side) / 2)
    return (width, height), (left, top, left + side, top + side)


def _resized_box(image: Image.Image, resized: tuple[int, int], box: Box) -> Image.Image:
    """Cut a box out of the resized image. A very long one is not made whole; the result then differs by rounding:
    Pillow knows positions in single precision only.
    """
    if math.prod(resized) <= MAX_RESIZED:
        return image.resize(resized, Image.Resampling.BICUBIC).crop(box)
    scale = image.width / resized[0], image.height / resized[1]
    seen = [edge * scale[i % 2] for i, edge in enumerate(box)]
    margin = [math.ceil(SUPPORT * max(1, factor)) + 1 for factor in scale]
    left, top = (max(0, math.floor(seen[i]) - margin[i]) for i in (0, 1))
    right, bottom = (min(image.size[i], math.ceil(seen[i + 2]) + margin[i]) for i in (0, 1))
    part = image.crop((left, top, right, bottom))
    inside = (seen[0] - left, seen[1] - top, min(seen[2] - left, part.width), min(seen[3] - top, part.height))
    return part.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BICUBIC, inside)


def colour_jitter(image: Image.Image, rng: np.random.Generator, strength: float) -> Image.Image:
    """Scale brightness, contrast and saturation by 1 - strength to 1 + strength each, in random order."""
    enhancements = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    order = rng.permutation(3)
    factors = rng.uniform(max(0.0, 1 - strength), 1 + strength, size=3)
    for i in order:
        image = enhancements[i](image).enhance(float(factors[i]))
    return image
