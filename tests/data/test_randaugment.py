"""RandAugment: what each operation does to pixels, and how they are drawn."""

import numpy as np
import pytest
from PIL import Image

from minicait.data import randaugment
from minicait.data.picture import MEAN
from minicait.data.randaugment import FILL, OPERATIONS, rand_augment
from tests.data.test_crops import photograph, places

IMAGE = photograph(40, 20, seed=1)
PIXELS = np.asarray(IMAGE).astype(int)
WITHOUT_MAGNITUDE = ("AutoContrast", "Equalize", "Invert")
WITHOUT_DIRECTION = (*WITHOUT_MAGNITUDE, "Posterize", "Solarize", "SolarizeAdd")


def apply(name, magnitude, negate=False, image=IMAGE):
    return np.asarray(OPERATIONS[name](image, magnitude, negate)).astype(int)


def test_there_are_fifteen_and_all_keep_size_and_mode():
    assert len(OPERATIONS) == 15
    for operation in OPERATIONS.values():
        result = operation(IMAGE, 9, True)
        assert result.size == IMAGE.size and result.mode == "RGB"
    np.testing.assert_array_equal(IMAGE, PIXELS)  # the input is untouched


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {*WITHOUT_MAGNITUDE, "Posterize"}))
def test_magnitude_nothing_changes_nothing_and_more_changes_more(name):
    changes = [np.abs(apply(name, magnitude) - PIXELS).mean() for magnitude in (0, 3, 9)]
    assert changes[0] == 0 < changes[1] < changes[2]


@pytest.mark.parametrize("name", OPERATIONS)
def test_only_some_have_a_direction(name):
    assert np.array_equal(apply(name, 9), apply(name, 9, negate=True)) == (name in WITHOUT_DIRECTION)


def test_values_by_the_histogram():
    np.testing.assert_array_equal(apply("Invert", 5), 255 - PIXELS)
    stretched = apply("AutoContrast", 5)
    assert (stretched.min((0, 1)) == 0).all() and (stretched.max((0, 1)) == 255).all()
    ramp = Image.fromarray(np.repeat((np.arange(256) ** 2 / 255).astype(np.uint8)[:, None, None], 3, axis=2))
    even = apply("Equalize", 5, image=ramp)[:, 0, 0]
    assert np.abs(even - np.arange(256)).max() <= 17  # the 16 darkest all become 0


def test_values_by_magnitude():
    np.testing.assert_array_equal(apply("Posterize", 0), PIXELS // 16 * 16)
    np.testing.assert_array_equal(apply("Posterize", 9), PIXELS // 128 * 128)
    assert not apply("Posterize", 10).any()
    np.testing.assert_array_equal(apply("Solarize", 5), np.where(PIXELS < 128, PIXELS, 255 - PIXELS))
    np.testing.assert_array_equal(apply("Solarize", 10), 255 - PIXELS)
    np.testing.assert_array_equal(apply("SolarizeAdd", 10), np.where(PIXELS < 128, PIXELS + 110, PIXELS))


def test_enhancements_go_both_ways_to_a_tenth_and_almost_twice():
    flat = Image.new("RGB", (8, 8), (100, 80, 60))
    for negate, factor in ((False, 1.9), (True, 0.1)):
        np.testing.assert_allclose(apply("Brightness", 10, negate, flat)[0, 0], np.multiply((100, 80, 60), factor))
        np.testing.assert_allclose(np.ptp(apply("Color", 10, negate, flat)[0, 0]), 40 * factor, atol=1.5)
    grey = Image.fromarray(np.repeat(np.array([[100, 150]], np.uint8)[..., None], 3, axis=2))
    for negate, values in ((False, (125 - 47.5, 125 + 47.5)), (True, (122.5, 127.5))):
        np.testing.assert_allclose(apply("Contrast", 10, negate, grey)[0, :, 0], values, atol=1)
    rough = [np.abs(np.diff(picture, axis=1)).mean() for picture in (apply("Sharpness", 9, n) for n in (True, False))]
    assert rough[0] < np.abs(np.diff(PIXELS, axis=1)).mean() < rough[1]


def test_translations_leave_the_fill_colour():
    image = places(40, 20)
    want = np.asarray(image).astype(int)
    for name, axis, far in (("TranslateX", 1, 18), ("TranslateY", 0, 9)):  # 45 % of the width and the height
        for negate in (False, True):
            got = apply(name, 10, negate, image)
            kept, source = (slice(far, None), slice(None, -far)) if negate else (slice(None, -far), slice(far, None))
            before = (slice(None),) * axis
            np.testing.assert_array_equal(got[(*before, kept)], want[(*before, source)])
            empty = slice(None, far) if negate else slice(-far, None)
            assert (got[(*before, empty)] == FILL).all()


def test_shears_and_rotations_leave_the_fill_colour_in_corners():
    image = Image.new("RGB", (40, 40))
    filled = {}
    for name in ("ShearX", "ShearY", "Rotate"):
        for negate in (False, True):
            got = apply(name, 10, negate, image)
            corners = got[[0, 0, -1, -1], [0, -1, 0, -1]]
            filled[name, negate] = [bool((corner == FILL).all()) for corner in corners]
    assert filled == {
        ("ShearX", False): [False, False, False, True],
        ("ShearX", True): [False, False, True, False],
        ("ShearY", False): [False, False, False, True],
        ("ShearY", True): [False, True, False, False],
        ("Rotate", False): [True] * 4,
        ("Rotate", True): [True] * 4,
    }
    assert tuple(np.round(255 * np.array(MEAN))) == FILL


def test_how_far_shears_and_rotations_go():
    image = places(41, 41)
    assert apply("ShearX", 10, image=image)[20, 10, 0] == 10 + 0.3 * 20 == apply("ShearY", 10, image=image)[10, 20, 1]
    turned = apply("Rotate", 10, image=image)[20]  # the middle row, now at 30 degrees to the image
    assert abs((turned[30, 0] - turned[10, 0]) / 20 - 0.866) < 0.03 and abs((turned[30, 1] - turned[10, 1]) / 20) > 0.47


@pytest.fixture
def applied(monkeypatch):
    """Record the operations instead of applying them: (name, magnitude, negate)."""
    calls = []

    def remember(name):
        return lambda image, *strength: calls.append((name, *strength)) or image

    monkeypatch.setattr(randaugment, "OPERATIONS", {name: remember(name) for name in OPERATIONS})
    return calls


def test_how_operations_are_drawn(applied):
    rng = np.random.default_rng(0)
    counts = []
    for _ in range(3000):
        before = len(applied)
        rand_augment(IMAGE, rng)
        counts.append(len(applied) - before)
    np.testing.assert_allclose(np.bincount(counts) / 3000, [0.25, 0.5, 0.25], atol=0.03)
    names, magnitudes, negated = zip(*applied, strict=True)
    assert set(names) == set(OPERATIONS) and all(140 < names.count(name) < 260 for name in OPERATIONS)
    assert abs(np.mean(magnitudes) - 9) < 0.03 and abs(np.std(magnitudes) - 0.5) < 0.03 and max(magnitudes) == 10
    assert abs(np.mean(negated) - 0.5) < 0.03


def test_count_probability_and_magnitude_can_be_chosen(applied):
    rng = np.random.default_rng(0)
    for _ in range(50):
        rand_augment(IMAGE, rng, magnitude=0, count=3, probability=1)
    magnitudes = [magnitude for _, magnitude, _ in applied]
    assert len(applied) == 150 and min(magnitudes) == 0 < max(magnitudes) < 3
    applied.clear()
    rand_augment(IMAGE, rng, magnitude=4, magnitude_std=0, count=20, probability=1)
    assert {magnitude for _, magnitude, _ in applied} == {4} and len({name for name, *_ in applied}) < 20  # some twice
    applied.clear()
    rand_augment(IMAGE, rng, count=50, probability=0)
    assert not applied


def test_the_same_generator_gives_the_same_image():
    results = [rand_augment(IMAGE, np.random.default_rng(seed), probability=1).tobytes() for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2] and IMAGE.tobytes() not in results
