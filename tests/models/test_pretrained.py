"""load_model: from a file of ours, from published weights, at another size, for other classes."""

import numpy as np
import pytest

import minicait
from minicait.files.weights import open_weights
from minicait.models.cait import CaiT

TINY = {"num_classes": 3, "img_size": 16, "patch_size": 4, "dim": 16, "heads": 2, "depth": 2, "layer_scale": 0.1}
NAMES = ["cat", "dog", "owl"]


@pytest.fixture
def file(tmp_path):
    minicait.save_weights(CaiT(**TINY, seed=5), tmp_path / "w.safetensors", NAMES, crop_ratio=0.9)
    return tmp_path / "w.safetensors"


def test_another_image_size(file):
    model, info = minicait.load_model(file, img_size=24)
    assert model.pos_embed.shape == (1, 36, 16) and info.config.img_size == (24, 24) and info.crop_ratio == 0.9
    assert model(np.zeros((1, 3, 24, 24), np.float32)).shape == (1, 3) and not model.training


@pytest.mark.parametrize("classes", [["cat", "dog"], ["dog", "cat", "owl"], NAMES])
def test_other_classes_get_a_new_head(file, classes):
    model, info = minicait.load_model(file, classes=classes, seed=9)
    old = open_weights(file)
    np.testing.assert_array_equal(model.blocks[1].mlp.fc1.weight.data, old.read("blocks.1.mlp.fc1.weight"))
    kept = classes == NAMES
    assert (model.head.weight.shape[0], info.class_names) == (len(classes), classes)
    fresh = CaiT(**{**TINY, "num_classes": len(classes)}, seed=9).head.weight.data
    np.testing.assert_array_equal(model.head.weight.data, old.read("head.weight") if kept else fresh)


def test_published_files_need_no_description(tmp_path):
    model = minicait.create_model("cait_tiny_32", seed=2)
    np.savez(tmp_path / "plain.npz", **model.state_dict())
    again, info = minicait.load_model(tmp_path / "plain.npz")
    assert info.class_names[:2] == ["tench", "goldfish"]
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    np.testing.assert_array_equal(again(images).data, model.eval()(images).data)


def test_a_published_name(monkeypatch, tmp_path):
    import minicait.files.pretrained as trained

    model = CaiT(**TINY)
    minicait.save_weights(model, tmp_path / "x.safetensors")
    asked = []
    monkeypatch.setattr(trained, "get_weights", lambda name: asked.append(name) or tmp_path / "x.safetensors")
    assert minicait.load_model("cait_xxs24_224")[0].config == model.config and asked == ["cait_xxs24_224"]


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [("cait_xxs99", "there is no weights file cait_xxs99, and there are no published weights cait_xxs99: did you mean"),
     ("deit3_small_patch16_224.in22k", "did you mean deit3_small_patch16_224.in21k"),
     ("nowhere.pth", r"there is no weights file nowhere\.pth")],
)  # fmt: skip
def test_no_weights(weights, sentence):
    with pytest.raises(ValueError, match=sentence):
        minicait.load_model(weights)


def test_weights_of_something_else(tmp_path):
    np.savez(tmp_path / "other.npz", **{"conv.weight": np.zeros((3, 3))})
    with pytest.raises(ValueError, match=r"other\.npz does not hold the weights of a known model \(cait"):
        minicait.load_model(tmp_path / "other.npz")
