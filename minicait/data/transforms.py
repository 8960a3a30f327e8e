"""Transforms from a picture to the model's input: a random one for training, a fixed one for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from .crops import centre_crop, check_crop_ratio, colour_jitter, padded_crop, resized_crop_box, simple_crop
from .erasing import random_erasing
from .picture import MEAN, STD, Picture, normalise
from .randaugment import rand_augment
from .three_augment import three_augment

Transform = Callable[[Picture, np.random.Generator | None], np.ndarray]
CROPS = ("none", "padded", "resized", "simple")


@dataclass(frozen=True)
class Augmentation:
    """Data augmentation; by default, none."""

    # none: the centre; resized: a box of random area (Inception); padded: the centre, shifted by up to an eighth of the
    # side; simple: a square on the whole shorter side, anywhere along the other (DeiT III)
    crop: str = "none"
    crop_scale: float = 0.08  # least fraction of the area that a resized crop takes
    flip: float = 0.0  # probability of mirroring
    colour_jitter: float = 0.0
    rand_augment: float = 0.0  # magnitude, at most 10
    erasing: float = 0.0  # probability of a box of noise
    three_augment: bool = False  # one of grey, solarised, blurred, instead of RandAugment

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise ValueError(f"augmentation: crop must be one of {', '.join(CROPS)}, got {self.crop!r}")
        for name, maximum in {"crop_scale": 1, "flip": 1, "colour_jitter": 1, "rand_augment": 10, "erasing": 1}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value <= maximum):
                raise ValueError(f"augmentation: {name} must be in [0, {maximum}], got {value}")
        if not isinstance(self.three_augment, bool):
            raise ValueError(f"augmentation: three_augment must be true or false, got {self.three_augment!r}")
        if self.three_augment and self.rand_augment:
            raise ValueError("augmentation: three_augment replaces rand_augment; set one of them")


def training(augmentation: Augmentation, side: int, crop_ratio: float = 1.0) -> Transform:
    """Crop, flip, RandAugment or 3-Augment, colour jitter, normalisation, erasing: in the reference's order."""
    check_crop_ratio(crop_ratio)

    def transform(picture: Picture, rng: np.random.Generator | None) -> np.ndarray:
        rng = np.random.default_rng() if rng is None else rng
        if augmentation.crop == "resized":
            image = _resized_crop(picture, rng, side, augmentation.crop_scale)
        elif augmentation.crop == "simple":
            image = simple_crop(picture.decode(), rng, side)
        else:
            image = centre_crop(picture.decode(), side, crop_ratio)
            if augmentation.crop == "padded":
                image = padded_crop(image, rng, side // 8)
        if augmentation.flip and rng.random() < augmentation.flip:
            image = ImageOps.mirror(image)
        if augmentation.rand_augment:
            image = rand_augment(image, rng, augmentation.rand_augment)
        if augmentation.three_augment:
            image = three_augment(image, rng)
        if augmentation.colour_jitter:
            image = colour_jitter(image, rng, augmentation.colour_jitter)
        pixels = normalise(np.asarray(image))
        if augmentation.erasing:
            random_erasing(pixels, rng, augmentation.erasing)
        return pixels

    return transform


def evaluation(
    side: int, crop_ratio: float = 1.0, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> Transform:
    """Centre crop and normalisation, pixel for pixel as in the reference."""
    check_crop_ratio(crop_ratio)

    def transform(picture: Picture, _: np.random.Generator | None) -> np.ndarray:
        return normalise(np.asarray(centre_crop(picture.decode(), side, crop_ratio)), mean, std)

    return transform


def _resized_crop(picture: Picture, rng: np.random.Generator, side: int, min_scale: float) -> Image.Image:
    """Choose the crop before decoding, so that a JPEG is decoded only as finely as the crop needs."""
    box = resized_crop_box(*picture.size, rng, (min_scale, 1.0))
    image = picture.decode(shrink=min(box[2] - box[0], box[3] - box[1]) / side)
    scale = image.width / picture.size[0], image.height / picture.size[1]
    left, top, right, bottom = (round(edge * scale[i % 2]) for i, edge in enumerate(box))
    part = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
    return part.resize((side, side), Image.Resampling.BICUBIC)
