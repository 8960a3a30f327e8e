"""Random erasing: noise in one box, with the requested area and probability."""

import numpy as np

from minicait.data.erasing import box_to_erase, random_erasing


def erase(image, rng, probability, **options):
    erased = random_erasing(*image.shape[1:], rng, probability, **options)
    if erased is not None:
        erased.fill(image)


def test_boxes_are_inside_and_follow_area_and_aspect():
    rng = np.random.default_rng(0)
    boxes = np.array([box_to_erase(60, 90, rng, (0.02, 1 / 3), 0.3) for _ in range(3000)])
    top, bottom, left, right = boxes.T
    assert top.min() == 0 and left.min() == 0 and bottom.max() == 60 and right.max() == 90
    assert (bottom - top).max() < 60 and (right - left).max() < 90
    area, aspect = (bottom - top) * (right - left) / (60 * 90), (bottom - top) / (right - left)
    assert 0.017 < area.min() < 0.025 and 0.32 < area.max() < 0.345
    assert 0.28 < aspect.min() < 0.33 and 3 < aspect.max() < 3.6
    assert abs(np.quantile(area, 0.5) - (0.02 + 1 / 3) / 2) < 0.02


def test_a_box_that_cannot_fit_is_given_up():
    rng = np.random.default_rng(0)
    assert box_to_erase(4, 400, rng, (0.3, 0.3), 0.9) is None
    image = np.zeros((3, 4, 400), np.float32)
    erase(image, rng, probability=1, area=(0.3, 0.3), aspect=0.9)
    assert not image.any()


def test_noise_fills_one_box_and_leaves_the_rest():
    rng, drawn = np.random.default_rng(0), []
    for _ in range(50):
        image = np.full((3, 40, 30), 7, np.float32)
        erase(image, rng, probability=1)
        rows, columns = np.nonzero((image != 7).any(axis=0))
        box = image[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert (box != 7).all() and box.size == (image != 7).sum()  # exactly one rectangle
        assert 0.015 < box.size / image.size < 0.36
        drawn.append(box.ravel())
    noise = np.concatenate(drawn)
    assert abs(noise.mean()) < 0.03 and abs(noise.std() - 1) < 0.03 and image.dtype == np.float32
    assert abs(np.corrcoef(box.reshape(3, -1)) - np.eye(3)).max() < 0.3  # each channel has its own


def test_how_often():
    rng = np.random.default_rng(0)
    for probability, low, high in ((0, 0, 0), (0.25, 0.2, 0.3), (1, 1, 1)):
        erased = 0
        for _ in range(600):
            image = np.zeros((3, 12, 12), np.float32)
            erase(image, rng, probability)
            erased += image.any()
        assert low <= erased / 600 <= high


def test_the_same_generator_erases_the_same():
    images = []
    for seed in (3, 3, 4):
        images.append(np.zeros((3, 20, 20), np.float32))
        erase(images[-1], np.random.default_rng(seed), probability=1)
    np.testing.assert_array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])
