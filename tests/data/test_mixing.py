"""Mixup and cutmix: targets follow the pixels."""

import numpy as np
import pytest

from autograd import Tensor
from autograd.ops.loss import soft_targets
from autograd.random import Stream
from minicait.data.mixing import box_around, cutmix, mix, mixup, one_hot

IMAGES = np.stack([np.full((3, 8, 8), i, np.float32) for i in range(6)])  # image i is i everywhere
TARGETS = one_hot(np.arange(6), 6)


def test_one_hot():
    np.testing.assert_array_equal(TARGETS, np.eye(6))
    assert TARGETS.dtype == np.float32 and one_hot(np.zeros(0, int), 3).shape == (0, 3)
    for wrong in ([1, 6], [-1, 2]):
        with pytest.raises(IndexError, match=rf"labels must be in \[0, 5\], got {min(wrong)} to {max(wrong)}"):
            one_hot(np.array(wrong), 6)


def test_labels_are_smoothed_after_mixing():
    """By the loss, and not before: both are linear, so the order does not matter."""
    logits = Tensor(np.zeros((6, 6), np.float32))
    np.testing.assert_allclose(soft_targets([1], Tensor(np.zeros((1, 4))), 0.2), [[0.05, 0.85, 0.05, 0.05]])
    mixed = mixup(IMAGES, TARGETS, 0.75)[1]
    before = mixup(IMAGES, np.asarray(soft_targets(np.arange(6), logits, 0.3)), 0.75)[1]
    np.testing.assert_allclose(soft_targets(mixed, logits, 0.3), before, rtol=1e-6)


def test_mixup_blends_with_the_reversed_batch():
    images, targets = mixup(IMAGES, TARGETS, 0.75)
    np.testing.assert_allclose(images[0], 0.75 * 0 + 0.25 * 5)
    np.testing.assert_allclose(targets[0], [0.75, 0, 0, 0, 0, 0.25])


def test_cutmix_pastes_a_box_and_counts_it():
    images, targets = cutmix(IMAGES, TARGETS, (2, 6, 0, 4))
    assert (images[1, :, 2:6, 0:4] == 4).all() and (images[1] == 4).mean() == 0.25 and (images[1] == 1).mean() == 0.75
    np.testing.assert_allclose(targets[1], [0, 0.75, 0, 0, 0.25, 0])
    assert (IMAGES[1] == 1).all()  # the batch itself is untouched


def test_a_box_is_cut_at_the_border():
    assert box_around((16, 16), (32, 32), 0.75) == (8, 24, 8, 24)
    assert box_around((0, 31), (32, 32), 0.75) == (0, 8, 23, 32)


@pytest.mark.parametrize(("alphas", "kinds"), [((0.8, 1.0), 2), ((0.8, 0.0), 1), ((0.0, 1.0), 1)])
def test_mix_chooses_by_step(alphas, kinds):
    seen = set()
    for step in range(40):
        images, targets = mix(IMAGES, TARGETS, *alphas, Stream(0, "mix", step))
        again, _ = mix(IMAGES, TARGETS, *alphas, Stream(0, "mix", step))
        np.testing.assert_array_equal(images, again)
        np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(images.mean((1, 2, 3)), targets @ np.arange(6), atol=1e-5)  # targets follow pixels
        seen.add(bool(np.isin(images, np.arange(6)).all()))
    assert len(seen) == kinds


def test_off_is_off():
    images, targets = mix(IMAGES, TARGETS, 0, 0, Stream())
    assert images is IMAGES and targets is TARGETS
