"""Crops: boxes of the right sizes inside the image; the exact centre in evaluation."""

import math

import numpy as np
import pytest
from PIL import Image

from minicait.data import Augmentation, Picture, crops, evaluation, training
from minicait.data.crops import centre_crop, colour_jitter, padded_crop, resized_crop_box, shrink, simple_crop


def photograph(width, height, seed=0):
    """Smooth colours with an edge and some grain, as in photographs."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    pixels = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    pixels[height // 3 : height // 2, width // 4 :] *= 0.4
    return Image.fromarray(np.clip(pixels + rng.normal(0, 3, pixels.shape), 0, 255).astype(np.uint8))


def places(width, height):
    """An image whose red and green are the column and the row."""
    row, column = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([column, row, 0 * row], axis=-1).astype(np.uint8))


def test_boxes_are_inside_and_follow_scale_and_ratio():
    rng = np.random.default_rng(0)
    boxes = np.array([resized_crop_box(90, 60, rng) for _ in range(2000)])
    left, top, right, bottom = boxes.T
    assert 0 <= left.min() <= 2 and 0 <= top.min() <= 2 and 88 <= right.max() <= 90 and 58 <= bottom.max() <= 60
    area, ratio = (right - left) * (bottom - top) / (90 * 60), (right - left) / (bottom - top)
    assert 0.075 < area.min() < 0.1 and 0.8 < area.max() <= 1  # sides are rounded to pixels, so not exactly 0.08
    assert 0.72 < ratio.min() < 0.78 and 1.28 < ratio.max() < 1.38
    assert abs(np.log(ratio).mean()) < 0.05  # portrait as often as landscape


def test_scale_and_ratio_can_be_chosen():
    rng = np.random.default_rng(0)
    for _ in range(50):
        left, top, right, bottom = resized_crop_box(200, 200, rng, scale=(0.25, 0.25), ratio=(1, 1))
        assert (right - left, bottom - top) == (100, 100)


def test_of_a_very_long_image_the_middle_is_taken():
    rng = np.random.default_rng(0)
    assert resized_crop_box(1000, 12, rng) == (492, 0, 508, 12)
    assert resized_crop_box(12, 1000, rng) == (0, 492, 12, 508)
    for _ in range(20):
        assert resized_crop_box(1, 1, rng) == (0, 0, 1, 1)


def test_boxes_and_jitter_are_those_of_their_generator():
    image = photograph(31, 20)
    for draw in (
        lambda rng: resized_crop_box(90, 60, rng),
        lambda rng: padded_crop(image, rng, 4).tobytes(),
        lambda rng: simple_crop(image, rng, 16).tobytes(),
        lambda rng: colour_jitter(image, rng, 0.4).tobytes(),
    ):
        assert draw(np.random.default_rng(5)) == draw(np.random.default_rng(5)) != draw(np.random.default_rng(6))


def test_a_padded_crop_moves_the_image():
    image, rng, moves = places(30, 20), np.random.default_rng(0), set()
    padded = np.zeros((24, 34, 3), np.uint8)
    padded[2:22, 2:32] = image
    for _ in range(300):
        crop = np.asarray(padded_crop(image, rng, 2))
        assert crop.shape == (20, 30, 3)
        left, top = int(crop[10, 15, 0]) - 13, int(crop[10, 15, 1]) - 8
        np.testing.assert_array_equal(crop, padded[top : top + 20, left : left + 30])
        moves.add((left, top))
    assert len(moves) == 25  # by -2 to 2 in both directions
    np.testing.assert_array_equal(padded_crop(image, rng, 0), image)


@pytest.mark.parametrize("size", [(30, 20), (20, 30), (20, 20)])
def test_a_simple_crop_is_a_square_of_the_image_that_is_reflected_at_its_border(size):
    image, rng, places_seen = places(*size), np.random.default_rng(0), set()
    padded = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)), "reflect")
    for _ in range(2000):
        crop = np.asarray(simple_crop(image, rng, 20))
        left, top = int(crop[10, 10, 0]) - 6, int(crop[10, 10, 1]) - 6
        np.testing.assert_array_equal(crop, padded[top : top + 20, left : left + 20])
        places_seen.add((left, top))
    width, height = size
    assert len(places_seen) == (width - 11) * (height - 11)  # every place, up to 4 pixels beyond each border


def test_a_simple_crop_resizes_the_shorter_side():
    image = photograph(50, 75)
    whole = image.resize((32, 48), Image.Resampling.BICUBIC)
    padded = np.pad(np.asarray(whole), ((4, 4), (4, 4), (0, 0)), "reflect")
    for seed in range(20):
        rng = np.random.default_rng(seed)
        top, left = int(rng.integers(48 - 32 + 9)), int(rng.integers(9))
        got = simple_crop(image, np.random.default_rng(seed), 32)
        np.testing.assert_array_equal(got, padded[top : top + 32, left : left + 32])


def test_without_resizing_the_centre_is_cut_out():
    wanted = {  # width, height, side, ratio: left, top; halves round to even, 30 / 0.875 rounds down
        (50, 32, 32, 1.0): (9, 0),
        (32, 51, 32, 1.0): (0, 10),
        (33, 32, 32, 1.0): (0, 0),
        (35, 32, 32, 1.0): (2, 0),
        (64, 100, 56, 0.875): (4, 22),
        (34, 34, 30, 0.875): (2, 2),
    }
    for (width, height, side, ratio), (left, top) in wanted.items():
        image = places(width, height)
        want = np.asarray(image)[top : top + side, left : left + side]
        np.testing.assert_array_equal(centre_crop(image, side, ratio), want)


@pytest.mark.parametrize("size", [(100, 60), (60, 100), (20, 33), (16, 16)])
@pytest.mark.parametrize("ratio", [1.0, 0.875])
def test_the_crop_is_the_middle_part_of_the_shorter_side(size, ratio):
    crop = np.asarray(centre_crop(places(*size), 48, ratio)).astype(float)
    part = min(size) * ratio
    for channel, length in enumerate(size):
        where = crop[..., channel].mean(axis=channel)  # rows for red, columns for green
        assert abs(where.mean() - (length - 1) / 2) < 0.02 * part
        assert abs((where[-1] - where[0]) / (part * 47 / 48) - 1) < 0.1


def resized_as_a_whole(image, side, ratio):
    """The reference's centre crop."""
    shorter = math.floor(side / ratio)
    width, height = (shorter * length // min(image.size) for length in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + side, top + side))


@pytest.mark.parametrize("side", [32, 224])
@pytest.mark.parametrize("ratio", [1.0, 0.875, 0.3])
def test_ordinary_images_have_the_reference_s_pixels_and_long_ones_nearly(side, ratio, monkeypatch):
    for size in ((500, 375), (375, 501), (33, 20), (7, 160), (160, 7), (1, 1), (1200, 40)):
        image = photograph(*size)
        want = np.asarray(resized_as_a_whole(image, side, ratio)).astype(int)
        np.testing.assert_array_equal(centre_crop(image, side, ratio), want)
        with monkeypatch.context() as patch:
            patch.setattr(crops, "MAX_RESIZED", 0)  # as if all of them were too long
            got = np.asarray(centre_crop(image, side, ratio)).astype(int)
        assert np.abs(got - want).max() <= 1 and (got != want).mean() < 0.005


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (60000, 1), (1, 60000)])
def test_images_of_hardly_any_pixels_pass_through_everything(size):
    pixels = np.full((size[1], size[0], 3), 77, np.uint8)
    assert np.unique(np.asarray(centre_crop(Image.fromarray(pixels), 224, 0.01))) == [77]
    assert shrink(Image.fromarray(pixels), 8).size == size
    assert evaluation(224, 0.5)(Picture(pixels), None).shape == (3, 224, 224)
    for crop in ("none", "padded", "resized", "simple"):
        augment = training(Augmentation(crop, 0.08, 0.5, 0.4, 9, 0.25), 16)
        for seed in range(40 if max(size) < 9 else 3):
            assert augment(Picture(pixels), np.random.default_rng(seed)).shape == (3, 16, 16)
    for side in (1, 2, 3, 5):  # less than what is reflected
        assert np.unique(np.asarray(simple_crop(Image.fromarray(pixels), np.random.default_rng(0), side))) == [77]


def test_a_ratio_that_makes_no_sense():
    for ratio in (0, 1e-300, 0.0099, 1.1, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"^crop_ratio must be from 0\.01 to 1, got {ratio}$"):
            centre_crop(places(9, 9), 8, ratio)


def test_jitter_of_no_strength_changes_nothing():
    image = photograph(31, 20)
    np.testing.assert_array_equal(colour_jitter(image, np.random.default_rng(0), 0.0), image)


def test_jitter_changes_brightness_contrast_and_saturation():
    """Over many draws, each of the three is raised about as often as lowered, within the combined limits."""
    image, rng = photograph(31, 20), np.random.default_rng(0)

    def measures(picture):
        pixels = np.asarray(picture).astype(float)
        return np.array([pixels.mean(), pixels.mean(-1).std(), np.ptp(pixels, axis=-1).mean()])

    changes = np.array([measures(colour_jitter(image, rng, 0.2)) for _ in range(200)]) / measures(image)
    assert (abs(changes.mean(0) - 1) < 0.04).all()
    assert (changes.std(0) > 0.08).all() and (changes > 0.8**3 - 0.02).all() and (changes < 1.2**3).all()
    assert abs(np.corrcoef(changes[:, 0], changes[:, 1] / changes[:, 0])[0, 1]) < 0.5  # not one factor for all
