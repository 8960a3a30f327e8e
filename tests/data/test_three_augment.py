"""3-Augment: the reference's images, one of three operations by a fair draw, and its place among the others."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from minicait.data import Augmentation, Picture, crops, three_augment, training
from minicait.data.picture import normalise
from tests.data.test_crops import photograph
from tests.golden.recipe import FOLDER

GOLDEN = dict(np.load(FOLDER / "family/three_augment.npz"))
IMAGE = Image.fromarray(GOLDEN["image"])
PIXELS = GOLDEN["image"].astype(int)


class Draws:
    """A generator whose draws are given."""

    def __init__(self, *draws):
        self.draws = iter(draws)

    def _next(self, *args, **kwargs):
        return next(self.draws)

    integers = uniform = random = permutation = _next


def same(image, name):
    np.testing.assert_array_equal(np.asarray(image), GOLDEN[name], err_msg=name)


def test_the_images_of_the_reference():
    same(three_augment.grey(IMAGE), "grayscale")
    same(three_augment.solarise(IMAGE), "solarize")
    for radius in ("0.1", "0.7", "1.3", "2.0"):
        same(three_augment.blur(IMAGE, float(radius)), f"blur_{radius}")


def test_what_they_do_to_pixels():
    luma = (PIXELS @ [19595, 38470, 7471] + 32768) >> 16
    np.testing.assert_array_equal(GOLDEN["grayscale"], np.repeat(luma[..., None], 3, axis=-1))
    np.testing.assert_array_equal(GOLDEN["solarize"], np.where(PIXELS < 128, PIXELS, 255 - PIXELS))
    np.testing.assert_array_equal(GOLDEN["blur_0.1"], PIXELS)


def test_colour_jitter_is_the_reference_s():
    for kind, name in (("Brightness", "brightness"), ("Contrast", "contrast"), ("Color", "saturation")):
        for factor in ("0.7", "1.3"):
            same(getattr(ImageEnhance, kind)(IMAGE).enhance(float(factor)), f"{name}_{factor}")
    brightness, contrast, saturation = 1.1, 0.8, 1.2
    draws = Draws([1, 2, 0], [brightness, contrast, saturation])
    same(crops.colour_jitter(IMAGE, draws, 0.3), "jitter_contrast_0.8_saturation_1.2_brightness_1.1")


def test_the_simple_crop_of_the_reference():
    same(IMAGE.resize((45, 32), Image.Resampling.BICUBIC), "src_resized_32")
    for top, left in np.ndindex(9, 22):
        want = GOLDEN["src_padded"][top : top + 32, left : left + 32]
        np.testing.assert_array_equal(np.asarray(crops.simple_crop(IMAGE, Draws(top, left), 32)), want)
    same(crops.simple_crop(IMAGE, Draws(0, 17), 32), "src_crop_top_0_left_17")


def test_one_of_three_with_even_chances(monkeypatch):
    counts, radii = Counter(), []
    for name in ("grey", "solarise", "blur"):
        monkeypatch.setattr(
            three_augment, name, lambda image, *radius, name=name: (counts.update([name]), radii.extend(radius))[0]
        )
    rng = np.random.default_rng(0)
    for _ in range(3000):
        three_augment.three_augment(IMAGE, rng)
    assert counts.total() == 3000 and all(900 < counts[name] < 1100 for name in ("grey", "solarise", "blur"))
    assert len(radii) == counts["blur"] and 0.1 <= min(radii) < 0.15 and 1.95 < max(radii) <= 2.0
    assert abs(np.mean(radii) - 1.05) < 0.06


def test_it_stands_between_the_flip_and_the_jitter():
    """Crop, flip, one of the three, jitter: the same as by hand, with the same draws."""
    image, how = photograph(40, 30), Augmentation("simple", flip=0.5, colour_jitter=0.3, three_augment=True)
    flipped = Counter()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        want = crops.simple_crop(image, rng, 16)
        if rng.random() < 0.5:
            flipped["flipped"] += 1
            want = want.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        want = crops.colour_jitter(three_augment.three_augment(want, rng), rng, 0.3)
        got = training(how, 16)(Picture(np.asarray(image)), np.random.default_rng(seed))
        np.testing.assert_array_equal(got, normalise(np.asarray(want)))
    assert 5 < flipped["flipped"] < 25


def test_it_is_instead_of_rand_augment():
    with pytest.raises(ValueError, match="augmentation: three_augment replaces rand_augment; set one of them"):
        Augmentation(rand_augment=9, three_augment=True)
    with pytest.raises(ValueError, match="augmentation: three_augment must be true or false, got 1"):
        Augmentation(three_augment=1)
    with pytest.raises(ValueError, match="crop must be one of none, padded, resized, simple, got 'small'"):
        Augmentation("small")
