"""RandAugment (Cubuk et al., 2020): two random operations out of fifteen, each applied with a chance of one half.

DeiT and CaiT were trained with this variant, `rand-m9-mstd0.5-inc1`. "inc" stands for increasing: a larger magnitude
always distorts more. In the original, some operations such as posterising went the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

Operation = Callable[[Image.Image, float, bool], Image.Image]  # RGB image, magnitude from 0 to 10, negate

FILL = (124, 116, 104)  # ImageNet's mean colour, for pixels from outside the image
MAX_MAGNITUDE = 10.0
_BICUBIC = Image.Resampling.BICUBIC


def rand_augment(
    image: Image.Image,
    rng: np.random.Generator,
    magnitude: float = 9.0,
    magnitude_std: float = 0.5,
    count: int = 2,
    probability: float = 0.5,
    chosen_from: Mapping[str, Operation] | None = None,
) -> Image.Image:
    """Draw `count` operations with replacement and apply each with `probability`, random magnitude and direction.

    chosen_from  by default all of OPERATIONS
    """
    operations = list((OPERATIONS if chosen_from is None else chosen_from).values())
    for chosen in rng.integers(len(operations), size=count):
        if rng.random() < probability:
            drawn = min(max(rng.normal(magnitude, magnitude_std), 0.0), MAX_MAGNITUDE)
            image = operations[chosen](image, drawn, rng.random() < 0.5)
    return image


def _signed(maximum: float, magnitude: float, negate: bool) -> float:
    """Scale a magnitude to [0, maximum], or to [-maximum, 0] if negated."""
    amount = magnitude / MAX_MAGNITUDE * maximum
    return -amount if negate else amount


def _factor(magnitude: float, negate: bool) -> float:
    """Factor for Pillow's enhancements: 1 changes nothing, at most 1.9, at least 0.1 if negated."""
    return max(0.1, 1 + _signed(0.9, magnitude, negate))


def _affine(image: Image.Image, x: tuple[float, float, float], y: tuple[float, float, float]) -> Image.Image:
    """Take the pixel at (column, row) from x . (column, row, 1), y . (column, row, 1)."""
    return image.transform(image.size, Image.Transform.AFFINE, x + y, _BICUBIC, fillcolor=FILL)


def _posterize(image: Image.Image, magnitude: float, _: bool) -> Image.Image:
    """Keep the upper 4 to 0 bits: one at the usual magnitude of 9, none at 10, which makes the image black.

    Pillow 13 refuses to keep 0 bits, so its own `posterize` would stop training about once in 660 images.
    """
    step = 2 ** (4 + int(magnitude / MAX_MAGNITUDE * 4))
    return image.point([value // step * step for value in range(256)] * 3)


def _solarize_add(image: Image.Image, magnitude: float, _: bool) -> Image.Image:
    """Add up to 110 to values below 128."""
    more = int(magnitude / MAX_MAGNITUDE * 110)
    return image.point([value + more if value < 128 else value for value in range(256)] * 3)


OPERATIONS: dict[str, Operation] = {  # in timm's order
    "AutoContrast": lambda image, *_: ImageOps.autocontrast(image),
    "Equalize": lambda image, *_: ImageOps.equalize(image),
    "Invert": lambda image, *_: ImageOps.invert(image),
    "Rotate": lambda image, *strength: image.rotate(_signed(30, *strength), _BICUBIC, fillcolor=FILL),
    "Posterize": _posterize,
    "Solarize": lambda image, magnitude, _: ImageOps.solarize(image, 256 - int(magnitude / MAX_MAGNITUDE * 256)),
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
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")  # that move what is in the image
IN_PLACE = {name: operation for name, operation in OPERATIONS.items() if name not in GEOMETRIC}
