"""RandAugment (Cubuk et al., 2020): two operations per image, drawn from fifteen, all of about the same strength.

This is the `rand-m9-mstd0.5-inc1` that DeiT and CaiT were trained with. "inc" stands for increasing: the larger the
magnitude, the less is left of the image. In the original some operations, such as posterising, went the other way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

Operation = Callable[[Image.Image, float, bool], Image.Image]  # image (RGB), magnitude from 0 to 10, other direction?

FILL = (124, 116, 104)  # ImageNet's mean, where nothing of the image is left
LARGEST = 10.0
_BICUBIC = Image.Resampling.BICUBIC


def rand_augment(
    image: Image.Image,
    rng: np.random.Generator,
    magnitude: float = 9.0,
    deviation: float = 0.5,
    count: int = 2,
    probability: float = 0.5,
) -> Image.Image:
    """`count` operations, perhaps one twice, each applied or not, with a magnitude and a direction of its own."""
    operations = list(OPERATIONS.values())
    for chosen in rng.integers(len(operations), size=count):
        if rng.random() < probability:
            drawn = min(max(rng.normal(magnitude, deviation), 0.0), LARGEST)
            image = operations[chosen](image, drawn, rng.random() < 0.5)
    return image


def _signed(most: float, magnitude: float, negate: bool) -> float:
    """From 0 to `most`, or to its opposite."""
    amount = magnitude / LARGEST * most
    return -amount if negate else amount


def _factor(magnitude: float, negate: bool) -> float:
    """For Pillow's enhancements, where 1 is the image as it is: up to 1.9, or down to 0.1."""
    return max(0.1, 1 + _signed(0.9, magnitude, negate))


def _affine(image: Image.Image, x: tuple[float, float, float], y: tuple[float, float, float]) -> Image.Image:
    """The pixel at (column, row) is taken from the place (x, y) . (column, row, 1)."""
    return image.transform(image.size, Image.Transform.AFFINE, x + y, _BICUBIC, fillcolor=FILL)


def _rotate(image: Image.Image, magnitude: float, negate: bool) -> Image.Image:
    return image.rotate(_signed(30, magnitude, negate), _BICUBIC, fillcolor=FILL)


def _posterize(image: Image.Image, magnitude: float, _: bool) -> Image.Image:
    """Keep the upper 4 to 0 bits: at the usual magnitude of 9 just one. At 10 the image is black.

    Pillow 13 refuses to keep 0 bits, so its own `posterize` would stop a training about once in 660 images.
    """
    step = 2 ** (4 + int(magnitude / LARGEST * 4))
    return image.point([value // step * step for value in range(256)] * 3)


def _solarize(image: Image.Image, magnitude: float, _: bool) -> Image.Image:
    """Invert what is brighter than a threshold, which falls from 256 to 0."""
    return ImageOps.solarize(image, 256 - int(magnitude / LARGEST * 256))


def _solarize_add(image: Image.Image, magnitude: float, _: bool) -> Image.Image:
    """Make the dark half of the values brighter, by up to 110."""
    more = int(magnitude / LARGEST * 110)
    return image.point([value + more if value < 128 else value for value in range(256)] * 3)


OPERATIONS: dict[str, Operation] = {  # in timm's order
    "AutoContrast": lambda image, *_: ImageOps.autocontrast(image),
    "Equalize": lambda image, *_: ImageOps.equalize(image),
    "Invert": lambda image, *_: ImageOps.invert(image),
    "Rotate": _rotate,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "SolarizeAdd": _solarize_add,
    "Color": lambda image, *strength: ImageEnhance.Color(image).enhance(_factor(*strength)),
    "Contrast": lambda image, *strength: ImageEnhance.Contrast(image).enhance(_factor(*strength)),
    "Brightness": lambda image, *strength: ImageEnhance.Brightness(image).enhance(_factor(*strength)),
    "Sharpness": lambda image, *strength: ImageEnhance.Sharpness(image).enhance(_factor(*strength)),
    "ShearX": lambda image, *strength: _affine(image, (1, _signed(0.3, *strength), 0), (0, 1, 0)),
    "ShearY": lambda image, *strength: _affine(image, (1, 0, 0), (_signed(0.3, *strength), 1, 0)),
    "TranslateX": lambda image, *strength: _affine(image, (1, 0, _signed(0.45, *strength) * image.width), (0, 1, 0)),
    "TranslateY": lambda image, *strength: _affine(image, (1, 0, 0), (0, 1, _signed(0.45, *strength) * image.height)),
}
