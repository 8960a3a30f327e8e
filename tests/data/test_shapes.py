"""Shapes: reproducible images with masks that cannot be learned from single pixels."""

import numpy as np
import pytest

from minicait.data.shapes import CLASSES, DIFFICULTIES, Shapes


def test_an_image_depends_on_seed_and_index_only():
    a, b = Shapes(10, 24, seed=3), Shapes(99, 24, seed=3)
    for i in (7, 0, 7):
        image, label = a[i]
        again, same = b[i]
        np.testing.assert_array_equal(image, again)
        assert label == same and image.shape == (24, 24, 3) and image.dtype == np.uint8
    assert not np.array_equal(a[0][0], a[1][0]) and not np.array_equal(a[0][0], Shapes(10, 24, seed=4)[0][0])


@pytest.mark.parametrize("size", [8, 32, 57])
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_mask_is_where_the_object_is(size, difficulty):
    shapes = Shapes(40, size, difficulty=difficulty)
    for i in range(40):
        image, mask, label = shapes.render(i)
        assert mask.shape == (size, size) and mask.dtype == bool and 0.005 < mask.mean() < 0.5
        np.testing.assert_array_equal(mask, shapes.mask(i))
        assert 0 <= label < len(CLASSES)
        if size == 57:  # large enough for the object's mean colour to differ from the background's
            assert np.abs(image[mask].mean(0) - image[~mask].mean(0)).max() > 20


def test_classes_are_balanced_and_difficulty_is_a_matter_of_size():
    labels = [Shapes(2000, 8)[i][1] for i in range(2000)]
    assert np.bincount(labels, minlength=10).min() > 150
    areas = [np.mean([Shapes(50, 32, difficulty=d).mask(i).mean() for i in range(50)]) for d in DIFFICULTIES]
    assert areas[0] > areas[1] > areas[2]


@pytest.mark.parametrize(("difficulty", "most"), [("easy", 0.7), ("medium", 0.3), ("hard", 0.25)])
def test_a_linear_classifier_learns_little(difficulty, most):
    """Ridge regression on the pixels of 1500 images has a low accuracy on 500 others."""
    shapes = Shapes(2000, 16, difficulty=difficulty)
    pairs = [shapes[i] for i in range(2000)]
    x = np.stack([image.reshape(-1) for image, _ in pairs]) / 255.0
    x = np.concatenate([x - x.mean(0), np.ones((2000, 1))], axis=1)
    labels = np.array([label for _, label in pairs])
    train, test = slice(0, 1500), slice(1500, 2000)
    ridge = x[train].T @ x[train] + 30 * np.eye(x.shape[1])
    weights = np.linalg.solve(ridge, x[train].T @ np.eye(10)[labels[train]])
    accuracy = ((x[test] @ weights).argmax(1) == labels[test]).mean()
    assert accuracy < most


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"count": 0}, "needs at least 1 image of at least 8 pixels, got 0 of 32"),
        ({"count": 5, "size": 4}, "needs at least 1 image of at least 8 pixels, got 5 of 4"),
        ({"count": 5, "difficulty": "extreme"}, "difficulty must be one of easy, medium, hard, got 'extreme'"),
    ],
)
def test_bad_input(arguments, sentence):
    with pytest.raises(ValueError, match=f"shapes: {sentence}"):
        Shapes(**arguments)
    with pytest.raises(IndexError, match="index 5 is out of range for 5 images"):
        Shapes(5)[5]


def test_all_classes_are_drawn():
    shapes = Shapes(300, 32)
    assert {shapes[i][1] for i in range(300)} == set(range(len(CLASSES)))
