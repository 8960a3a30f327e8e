"""Weights files of every family, as their authors, timm and we write them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import minicait
from minicait.cli import main
from minicait.files.pretrained import recognised
from minicait.files.weights import WeightFile, load_weights, open_weights
from minicait.models import FAMILIES, find_model, list_models
from minicait.models.cait import CaiT
from minicait.models.lvvit import LVViT
from minicait.models.positions import resize_positions
from minicait.models.resmlp import ResMLP
from tests.attack.pth_files import save_pth
from tests.golden.recipe import FOLDER

MINIS = ["cait_tiny_32", "deit_mini_32", "deit_mini_distilled_32", "deit3_mini_32", "resmlp_mini_32",
         "patchconvnet_mini_32", "patchconvnet_mini_multi_32", "lvvit_mini_32"]  # fmt: skip
WITH_POSITIONS = [name for name in MINIS if not name.startswith(("resmlp", "patchconvnet"))]
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)


def mini(name, classes=7, seed=1, **changes):
    """A small model of a family in which no tensor has its first values."""
    model, rng = minicait.create_model(name, classes, seed=seed, **changes).eval(), np.random.default_rng(seed)
    for _, tensor in model.named_tensors():
        tensor.data[...] = tensor.data + rng.integers(1, 9, tensor.shape) * (1 if tensor.dtype.kind == "i" else 1 / 64)
    return model


def same(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(np.array_equal(value, theirs[name]) for name, value in ours.items())


def of_timm(state):
    """Tensors under timm's names, with timm's shapes."""
    resmlp = "norm.alpha" in state
    pairs = [("gamma_1", "ls1"), ("gamma_2", "ls2"), ("patch_embed.", "stem."), ("attn.", "linear_tokens."),
             ("mlp.", "mlp_channels.")] if resmlp else [("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma")]  # fmt: skip
    renamed = {}
    for name, value in state.items():
        for ours, theirs in pairs:
            name = name.replace(ours, theirs)
        renamed[name] = value.reshape(1, 1, -1) if name.endswith((".alpha", ".beta")) else value
    return renamed


LAYOUTS = {
    "w.npz": lambda path, state: np.savez(path, **state),
    "hub.safetensors": lambda path, state: save_file(state, path),
    "bare.pth": save_pth,
    "meta.pth": lambda path, state: save_pth(path, {"model": state, "epoch": 3}),
    "w.pth.tar": lambda path, state: save_pth(
        path, {"epoch": 9, "arch": "x", "state_dict": {f"module.{name}": value for name, value in state.items()},
               "state_dict_ema": {name: value + 1 for name, value in state.items()}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MINIS)
def test_a_file_that_says_nothing_is_recognised(name, layout, tmp_path, capsys):
    model, path = mini(name), tmp_path / layout
    LAYOUTS[layout](path, model.state_dict())
    again, info = minicait.load_model(path)
    assert type(again) is type(model) and same(again, model) and info.crop_ratio == model.config.crop_ratio
    assert again.config.changed(layer_scale=getattr(model.config, "layer_scale", None)) == model.config
    np.testing.assert_array_equal(again(IMAGES).numpy(), model(IMAGES).numpy())
    assert main(["weights", "info", str(path)]) == 0 and f"the sizes of {name}\n" in capsys.readouterr().out
    if layout.endswith(".tar"):
        averaged = open_weights(path, ema=True)
        assert all(np.array_equal(averaged.read(key), value + 1) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["deit3_mini_32", "resmlp_mini_32"])
def test_names_of_timm(name, tmp_path, capsys):
    model, path = mini(name), tmp_path / "hub.safetensors"
    theirs = of_timm(model.state_dict())
    assert len(theirs.keys() - model.state_dict().keys()) > 10
    save_file(theirs, path)
    other = minicait.create_model(name, 7)
    load_weights(other, path)
    again = minicait.load_model(path)[0]
    assert same(other, model) and type(again) is type(model) and same(again, model)
    assert main(["weights", "info", str(path)]) == 0 and f"the sizes of {name}\n" in capsys.readouterr().out
    save_file(theirs | {"blocks.0.gamma_1": model.blocks[0].gamma_1.numpy()}, path)
    with pytest.raises(ValueError, match="has the same tensor twice, under two names"):
        load_weights(other, path)


@pytest.mark.parametrize("name", list_models("grafit_*"))
def test_a_grafit_is_not_told_by_its_shapes(name):
    """Nobody publishes one, and the number of its classes is not among them. Our own files say what they hold."""
    family, config = find_model(name)
    file = WeightFile(Path("w.pth"), family.model.shapes_of(config), lambda name: np.zeros(0))
    with pytest.raises(ValueError, match=r"does not hold the weights of a known model"):
        recognised(file)


@pytest.mark.parametrize("name", [name for name in list_models() if not name.startswith("grafit_")])
def test_names_and_shapes_tell_the_model(name, monkeypatch):
    """No other family takes the file, whatever their order."""
    family, config = find_model(name)
    file = WeightFile(Path("w.pth"), family.model.shapes_of(config), lambda name: np.zeros(0))
    hidden = {"layer_scale": 0.0} | ({"img_size": None} if family.name == "patchconvnet" else {})
    info = recognised(file)
    assert info.family == family.name and info.config.to_json() | hidden == config.to_json() | hidden
    monkeypatch.setattr("minicait.files.pretrained.FAMILIES", [other for other in FAMILIES if other is not family])
    with pytest.raises(ValueError, match=r"does not hold the weights of a known model"):
        recognised(file)


def test_hidden_values_that_are_no_multiple(tmp_path):
    assert int(56 * (61 / 56)) == 60
    sizes = {"num_classes": 2, "img_size": 8, "patch_size": 4, "dim": 56, "depth": 1}
    for model in (CaiT(**sizes, heads=2, mlp_ratio=61.5 / 56), ResMLP(**sizes, mlp_ratio=61.5 / 56)):
        np.savez(tmp_path / "w.npz", **model.state_dict())
        again = minicait.load_model(tmp_path / "w.npz")[0]
        assert again.config.hidden == 61 and same(again, model)


def test_a_residual_factor_that_nobody_knows(tmp_path):
    np.savez(tmp_path / "w.npz", **LVViT(7, 32, 8, 96, 5, 3, stem_channels=4).state_dict())
    with pytest.raises(ValueError, match=r"w\.npz does not hold the weights of a known model"):
        minicait.load_model(tmp_path / "w.npz")


# ---- other classes, other image sizes


@pytest.mark.parametrize("name", MINIS)
def test_other_classes(name, tmp_path):
    model, path = mini(name), tmp_path / "seven.npz"
    np.savez(path, **model.state_dict())
    other = minicait.create_model(name, 3, seed=5)
    fresh = {key: value.copy() for key, value in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"seven\.npz is for 7 classes, the model has 3: .* new_head=True"):
        load_weights(other, path)
    assert all(np.array_equal(value, fresh[key]) for key, value in other.state_dict().items())
    load_weights(other, path, new_head=True)
    built, info = minicait.load_model(path, classes=["a", "b", "c"], seed=5)
    assert same(built, other) and info.class_names == ["a", "b", "c"]
    of_classes = {key for key in fresh if key.startswith(("head", "aux_head", "head_dist")) or
                  ("multi" in name and key == "cls_token")}  # fmt: skip
    for key, value in other.state_dict().items():
        np.testing.assert_array_equal(value, fresh[key] if key in of_classes else model.state_dict()[key], err_msg=key)
    assert len(of_classes) == {"patchconvnet_mini_multi_32": 7, "deit_mini_distilled_32": 4, "lvvit_mini_32": 4}.get(
        name, 2
    )


@pytest.mark.parametrize("name", MINIS)
def test_as_many_classes_of_other_names(name, tmp_path):
    model = mini(name, 2)
    minicait.save_weights(model, tmp_path / "w.safetensors", ["cat", "dog"])
    assert same(minicait.load_model(tmp_path / "w.safetensors", classes=["cat", "dog"])[0], model)
    other, _ = minicait.load_model(tmp_path / "w.safetensors", classes=["dog", "owl"], seed=4)
    fresh = minicait.create_model(name, 2, seed=4).state_dict()
    for key, value in other.state_dict().items():
        kept = fresh if other.is_of_classes(key) else model.state_dict()
        np.testing.assert_array_equal(value, kept[key], err_msg=key)


def test_a_token_for_every_class_from_a_model_with_one(tmp_path):
    model = mini("patchconvnet_mini_32")
    np.savez(tmp_path / "w.npz", **model.state_dict())
    multi = minicait.create_model("patchconvnet_mini_multi_32", 3)
    load_weights(multi, tmp_path / "w.npz", new_head=True)
    np.testing.assert_array_equal(multi.norm.weight.numpy(), model.norm.weight.numpy())
    assert multi.cls_token.shape == (1, 3, 96)


@pytest.mark.parametrize("name", WITH_POSITIONS)
def test_positions_for_another_image_size(name, tmp_path):
    model, prefix = mini(name), {"deit_mini_32": 1, "deit_mini_distilled_32": 2, "lvvit_mini_32": 1}.get(name, 0)
    np.savez(tmp_path / "w.npz", **model.state_dict())
    other, _ = minicait.load_model(tmp_path / "w.npz", img_size=48)
    ours = other.pos_embed.numpy()
    np.testing.assert_array_equal(ours[:, :prefix], model.pos_embed.numpy()[:, :prefix])
    np.testing.assert_array_equal(ours, resize_positions(model.pos_embed.numpy(), (8, 8), (12, 12), prefix))
    assert other(np.zeros((1, 3, 48, 48), np.float32)).shape == (1, 7)


def test_positions_behind_two_tokens_are_resized_as_by_the_authors():
    with np.load(FOLDER / "family/positions.npz") as z:
        for side in (6, 3):
            got = resize_positions(z["pos_embed"], (4, 4), (side, side), prefix=2)
            np.testing.assert_allclose(got, z[f"resized_{side}"], rtol=1e-6, atol=1e-6)


def test_models_without_positions(tmp_path):
    np.savez(tmp_path / "p.npz", **mini("patchconvnet_mini_32").state_dict())
    assert minicait.load_model(tmp_path / "p.npz", img_size=48)[0](np.zeros((1, 3, 48, 48), np.float32)).shape == (1, 7)
    np.savez(tmp_path / "r.npz", **mini("resmlp_mini_32").state_dict())
    with pytest.raises(ValueError, match=r"does not fit the model: a ResMLP takes images of one size: 64 patches"):
        minicait.load_model(tmp_path / "r.npz", img_size=48)


# ---- buffers


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("running_var", np.full(16, np.inf, np.float32), "values that are not finite in float32"),
        ("running_mean", np.full(16, 1e300), "values that are not finite in float32"),
        ("num_batches_tracked", np.array(np.nan), "values that are no int64"),
        ("num_batches_tracked", np.array(1e30), "values that are no int64"),
        ("num_batches_tracked", np.array([3]), r"must have shape \(\), got \(1,\)"),
    ],
)
def test_statistics_that_are_none(name, value, sentence, tmp_path):
    model = mini("lvvit_mini_32")
    before = {key: x.copy() for key, x in model.state_dict().items()}
    changed = {key: x + 1 for key, x in before.items()} | {f"patch_embed.bn2.{name}": value}
    np.savez(tmp_path / "w.npz", **changed)
    with pytest.raises(ValueError, match=rf"patch_embed\.bn2\.{name}.*{sentence}"):
        load_weights(model, tmp_path / "w.npz")
    assert all(np.array_equal(x, before[key]) for key, x in model.state_dict().items())


def test_counters_stay_integers(tmp_path):
    model = mini("lvvit_mini_32")
    model.patch_embed.bn1.num_batches_tracked.data[...] = 2**53 + 1
    save_pth(tmp_path / "w.pth.tar", {"state_dict": model.state_dict()})
    count = minicait.load_model(tmp_path / "w.pth.tar")[0].patch_embed.bn1.num_batches_tracked.numpy()
    assert count.dtype == np.int64 and count == 2**53 + 1


def test_our_own_files(tmp_path):
    """They say their family and their sizes, PatchConvNet's image size, too."""
    model = mini("patchconvnet_mini_multi_32", img_size=48)
    minicait.save_weights(model, tmp_path / "w.safetensors", list("abcdefg"), crop_ratio=0.5)
    again, info = minicait.load_model(tmp_path / "w.safetensors")
    assert same(again, model) and again.config == model.config and info.crop_ratio == 0.5
    assert json.loads(json.dumps(info.to_json()))["family"] == "patchconvnet"
