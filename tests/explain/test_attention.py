"""Class attention: the maps are those of the paper's equations, and the sheet shows them."""

import numpy as np
import pytest

import minicait
from minicait.explain import attention_sheet, class_attention, saliency
from minicait.explain.attention import CAPTION, GAP, SIDE
from minicait.models.cait import CaiT


@pytest.fixture
def model():
    return CaiT(num_classes=3, img_size=(16, 24), patch_size=8, dim=16, heads=2, depth=1, layer_scale=0.1, seed=1)


def test_maps_are_the_recorded_attention(model):
    images = np.random.default_rng(0).standard_normal((2, 3, 16, 24)).astype(np.float32)
    maps, logits = class_attention(model.train(), images)
    assert maps.shape == (2, 2, 2, 2, 3) and model.training  # images, layers, heads, rows, columns
    with minicait.record(model.eval()) as inside:
        want = model(images).numpy()
    np.testing.assert_array_equal(logits, want)
    second = inside.class_attention["blocks_token_only.1.attn"]
    np.testing.assert_array_equal(maps[1, 1, 0, 1, 2], second[1, 0, 0, 6])  # the last patch; the token itself is key 0
    own = inside.class_attention["blocks_token_only.0.attn"][:, :, 0, 0]
    np.testing.assert_allclose(maps[:, 0].sum(axis=(2, 3)) + own, 1, rtol=1e-5)


def test_saliency():
    heads = np.array([[[0.0, 0.2]], [[0.4, 0.2]]])
    np.testing.assert_allclose(saliency(heads), [[0, 0]])  # their mean is constant
    np.testing.assert_allclose(saliency(np.array([[[1.0, 3.0, 2.0]]])), [[0, 1, 0.5]])


def test_the_sheet():
    square = CaiT(num_classes=3, img_size=16, patch_size=8, dim=16, heads=2, depth=1, layer_scale=0.1)
    images = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
    sheet = attention_sheet(square, images, [0, 1, 2, 0], ["a", "b", "c"])
    assert sheet.size == (3 * (SIDE + GAP) + GAP, 4 * (SIDE + CAPTION + GAP) + GAP)
    pixels = np.asarray(sheet).astype(int)
    first = pixels[GAP + CAPTION : GAP + CAPTION + SIDE]
    maps = first[:, SIDE + 2 * GAP : 2 * SIDE + 2 * GAP], first[:, 2 * SIDE + 3 * GAP : 3 * SIDE + 3 * GAP]
    assert all((part[..., 0] - part[..., 2]).max() > 50 for part in maps)  # yellow where attention is highest
    assert (pixels[GAP : GAP + CAPTION] < 100).any()  # a caption
