"""From a picture to the model's input: one way for training, which chance decides, and one for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from .crops import centre_crop, colour_jitter, padded_crop, resized_crop_box
from .erasing import random_erasing
from .picture import MEAN, STD, Picture, normalise
from .randaugment import rand_augment

Transform = Callable[[Picture, np.random.Generator | None], np.ndarray]
CROPS = ("none", "padded", "resized")


@dataclass(frozen=True)
class Augmentation:
    """What is left to chance in training. The defaults leave nothing."""

    crop: str = "none"  # resized: a part of the image, of any size (Inception); padded: moved by an eighth of the side
    crop_scale: float = 0.08  # the least part of the area that a resized crop takes
    flip: float = 0.0  # how often the image is mirrored
    colour_jitter: float = 0.0
    rand_augment: float = 0.0  # magnitude, of 10
    erasing: float = 0.0  # how often a box of noise is put into the image

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise ValueError(f"augmentation: crop must be one of {', '.join(CROPS)}, got {self.crop!r}")
        for name, most in {"crop_scale": 1, "flip": 1, "colour_jitter": 1, "rand_augment": 10, "erasing": 1}.items():
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 <= value <= most):
                raise ValueError(f"augmentation: {name} must be in [0, {most}], got {value}")


def training(how: Augmentation, side: int, crop_ratio: float = 1.0) -> Transform:
    """Crop, flip, colours, numbers, erasing: in the reference's order."""

    def transform(picture: Picture, rng: np.random.Generator | None) -> np.ndarray:
        rng = np.random.default_rng() if rng is None else rng
        if how.crop == "resized":
            image = _resized_crop(picture, rng, side, how.crop_scale)
        else:
            image = centre_crop(picture.decode(), side, crop_ratio)
            if how.crop == "padded":
                image = padded_crop(image, rng, side // 8)
        if how.flip and rng.random() < how.flip:
            image = ImageOps.mirror(image)
        if how.rand_augment:
            image = rand_augment(image, rng, how.rand_augment)
        if how.colour_jitter:
            image = colour_jitter(image, rng, how.colour_jitter)
        pixels = normalise(np.asarray(image))
        if how.erasing:
            random_erasing(pixels, rng, how.erasing)
        return pixels

    return transform


def evaluation(
    side: int, crop_ratio: float = 1.0, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> Transform:
    """The middle of the image, the same every time, pixel for pixel as in the reference."""

    def transform(picture: Picture, _: np.random.Generator | None) -> np.ndarray:
        return normalise(np.asarray(centre_crop(picture.decode(), side, crop_ratio)), mean, std)

    return transform


def _resized_crop(picture: Picture, rng: np.random.Generator, side: int, least: float) -> Image.Image:
    """The crop is chosen first, so that a JPEG is decoded only as finely as the crop needs."""
    box = resized_crop_box(*picture.size, rng, (least, 1.0))
    image = picture.decode(shrink=min(box[2] - box[0], box[3] - box[1]) / side)
    scale = image.width / picture.size[0], image.height / picture.size[1]
    left, top, right, bottom = (round(edge * scale[i % 2]) for i, edge in enumerate(box))
    part = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
    return part.resize((side, side), Image.Resampling.BICUBIC)
