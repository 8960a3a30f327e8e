"""Transforms from a picture to the model's input: a random one for training, a fixed one for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from .crops import (
    Box,
    centre_crop,
    centre_crop_box,
    check_crop_ratio,
    colour_jitter,
    padded_crop_box,
    resized_crop_box,
    simple_crop,
)
from .erasing import Erased, random_erasing
from .picture import MEAN, STD, Picture, normalise
from .randaugment import IN_PLACE, OPERATIONS, rand_augment
from .three_augment import three_augment

Transform = Callable[[Picture, np.random.Generator | None], np.ndarray]
Fractions = tuple[float, float, float, float]  # left, top, right, bottom, as fractions of the image's sides
WHOLE: Fractions = (0.0, 0.0, 1.0, 1.0)
CROPS = ("none", "padded", "resized", "simple")
LABELLED_CROPS = ("none", "padded", "resized")  # whose box in the image is known, so that labels of places follow


class View(NamedTuple):
    """Pixels that a model sees of an image, and their place in it: at `box`, then mirrored if `flipped`."""

    pixels: np.ndarray
    box: Fractions = WHOLE  # may reach beyond the image, where a crop is black
    flipped: bool = False
    erased: Erased | None = None  # if pixels are those before normalisation, what is to be erased after it


class Viewing:
    """A transform that can also tell what it has cut out: `view` returns a View, and a call its pixels.

    look       cuts out and augments: returns a View of uint8 pixels (H, W, 3)
    mean, std  by which `view` then normalises them
    """

    def __init__(
        self,
        look: Callable[[Picture, np.random.Generator | None], View],
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        self.look, self.mean, self.std = look, mean, std

    def view(self, picture: Picture, rng: np.random.Generator | None) -> View:
        seen = self.look(picture, rng)
        pixels = normalise(seen.pixels, self.mean, self.std)
        if seen.erased is not None:
            seen.erased.fill(pixels)
        return seen._replace(pixels=pixels, erased=None)

    def __call__(self, picture: Picture, rng: np.random.Generator | None) -> np.ndarray:
        return self.view(picture, rng).pixels


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


def training(augmentation: Augmentation, side: int, crop_ratio: float = 1.0, token_labels: bool = False) -> Viewing:
    """Crop, flip, RandAugment or 3-Augment, colour jitter, normalisation, erasing: in the reference's order.

    token_labels  there are labels for places in the image, which follow crop and flip: RandAugment then does without
                  operations that move what is in the image
    """
    check_crop_ratio(crop_ratio)
    if token_labels and augmentation.crop not in LABELLED_CROPS:
        known = ", ".join(LABELLED_CROPS)
        raise ValueError(f"token labels cannot follow crop={augmentation.crop}; choose one of {known}")
    operations = IN_PLACE if token_labels else OPERATIONS

    def look(picture: Picture, rng: np.random.Generator | None) -> View:
        rng = np.random.default_rng() if rng is None else rng
        if augmentation.crop == "resized":
            image, box = _resized_crop(picture, rng, side, augmentation.crop_scale)
        elif augmentation.crop == "simple":
            image, box = simple_crop(picture.decode(), rng, side), WHOLE  # reflected at the border, so no box
        else:
            image, box = _centre_crop(picture.decode(), side, crop_ratio)
            if augmentation.crop == "padded":
                shifted = padded_crop_box(side, side, rng, side // 8)
                image, box = image.crop(shifted), _within(box, _fractions(shifted, image.size))
        flipped = augmentation.flip > 0 and rng.random() < augmentation.flip
        if flipped:
            image = ImageOps.mirror(image)
        if augmentation.rand_augment:
            image = rand_augment(image, rng, augmentation.rand_augment, chosen_from=operations)
        if augmentation.three_augment:
            image = three_augment(image, rng)
        if augmentation.colour_jitter:
            image = colour_jitter(image, rng, augmentation.colour_jitter)
        erased = random_erasing(side, side, rng, augmentation.erasing) if augmentation.erasing else None
        return View(np.asarray(image), box, flipped, erased)

    return Viewing(look)


def evaluation(side: int, crop_ratio: float = 1.0, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Viewing:
    """Centre crop and normalisation, pixel for pixel as in the reference."""
    check_crop_ratio(crop_ratio)

    def look(picture: Picture, _: np.random.Generator | None) -> View:
        image, box = _centre_crop(picture.decode(), side, crop_ratio)
        return View(np.asarray(image), box)

    return Viewing(look, mean, std)


def _resized_crop(
    picture: Picture, rng: np.random.Generator, side: int, min_scale: float
) -> tuple[Image.Image, Fractions]:
    """Choose the crop before decoding, so that a JPEG is decoded only as finely as the crop needs."""
    box = resized_crop_box(*picture.size, rng, (min_scale, 1.0))
    image = picture.decode(shrink=min(box[2] - box[0], box[3] - box[1]) / side)
    scale = image.width / picture.size[0], image.height / picture.size[1]
    left, top, right, bottom = (round(edge * scale[i % 2]) for i, edge in enumerate(box))
    cut = left, top, max(right, left + 1), max(bottom, top + 1)
    return image.crop(cut).resize((side, side), Image.Resampling.BICUBIC), _fractions(cut, image.size)


def _centre_crop(image: Image.Image, side: int, ratio: float) -> tuple[Image.Image, Fractions]:
    resized, box = centre_crop_box(*image.size, side, ratio)
    return centre_crop(image, side, ratio), _fractions(box, resized)


def _fractions(box: Box, size: tuple[int, int]) -> Fractions:
    left, top, right, bottom = box
    return left / size[0], top / size[1], right / size[0], bottom / size[1]


def _within(outer: Fractions, inner: Fractions) -> Fractions:
    """A box that is given as fractions of another one."""
    width, height = outer[2] - outer[0], outer[3] - outer[1]
    left, top, right, bottom = inner
    return (
        outer[0] + left * width, outer[1] + top * height, outer[0] + right * width, outer[1] + bottom * height
    )  # fmt: skip
