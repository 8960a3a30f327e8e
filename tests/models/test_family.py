"""Families: what every one of them can do, and what their files say."""

import json
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from safetensors.numpy import save_file

import minicait
from autograd import Context
from autograd.backend import is_array
from minicait import models, nn
from minicait.cli import main
from minicait.files.weights import open_weights
from minicait.models import FAMILIES, Config, Model, find_model, list_models
from minicait.models.cait import CaiT, CaiTConfig
from minicait.models.variants import Variant
from minicait.nn.layers import shapes_only
from tests.models.small_models import SMALL_GRAFITS, SMALL_MODELS

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 3, "layer_scale": 0.5}
ALL = SMALL_MODELS | SMALL_GRAFITS
IMAGES = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)


@pytest.mark.parametrize("name", list_models())
def test_every_name(name):
    family, config = find_model(name)
    assert family.presets[name] is config and type(config) is family.model.config_type
    assert family.model.config_type.from_json(json.loads(json.dumps(config.to_json()))) == config
    cost = config.cost()
    assert all(isinstance(n, int) for n in cost) and min(cost[:4]) > 0 and 0 <= cost.left_out < cost.multiply_adds
    assert 0 <= cost.recomputed_bytes <= cost.recomputed_bytes + cost.narrow_bytes < cost.activation_bytes
    with shapes_only():  # of any size: no weights are drawn
        model = minicait.create_model(name, 10)
    assert type(model) is family.model and models.family_of(model) is family
    assert model.config == config.changed(num_classes=10)
    assert model.parameter_count() == model.cost().parameters == model.config.cost().parameters
    assert (model.num_classes, model.img_size, model.grid) == (10, config.img_size, config.grid)
    assert set(model.classifiers) <= {path for path, _ in model.named_modules()} | model.state_dict().keys()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family(family):
    assert models.family_named(family.name) is family
    assert all(re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9]+)?", name) for name in family.published)
    assert {name.partition(".")[0] for name in family.published} <= set(family.presets)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in family.presets)
    name, config = min(family.presets.items(), key=lambda item: item[1].cost().parameters)
    model = minicait.create_model(name, 7, seed=1).eval()
    images = np.random.default_rng(0).standard_normal((2, 3, *config.img_size)).astype(np.float32)
    outputs = model.outputs(images)
    assert outputs.logits.shape == (2, 7)
    np.testing.assert_array_equal(model(images).numpy(), outputs.logits.numpy())
    assert all(value is None or len(value) == 2 for value in outputs)
    same, other = (minicait.create_model(name, 7, seed=seed).state_dict() for seed in (1, 2))
    assert same.keys() == model.state_dict().keys() == other.keys()
    assert all(np.array_equal(value, same[key]) for key, value in model.state_dict().items())
    assert any(not np.array_equal(value, other[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ALL)
def test_memory_estimate_is_that_of_the_graph(name):
    model = ALL[name]()
    outputs = model.outputs(IMAGES[:1].copy())
    own = {id(p.data) for p in model.parameters()}
    stack, seen, arrays = [x.node for x in outputs if x is not None], set(), {}
    while stack:
        node = stack.pop()
        if isinstance(node, Context) and id(node) not in seen:
            seen.add(id(node))
            stack.extend(node.parents)
            for value in filter(is_array, node.saved):
                array = value
                while array.base is not None:
                    array = array.base
                if id(array) not in own:
                    arrays[id(array)] = array.nbytes
    assert model.cost().activation_bytes == pytest.approx(sum(arrays.values()), rel=0.01)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("classes", [1, 3])
def test_few_classes_and_empty_batches(name, classes):
    model = ALL[name](num_classes=classes).eval()
    assert model(IMAGES).shape == (4, classes) and model(IMAGES[:0]).shape == (0, classes)


def test_a_token_for_a_single_class_attends_to_the_patches_alone():
    model = SMALL_MODELS["patchconvnet-multi"](num_classes=1).eval()
    with minicait.record(model) as inside:
        model(IMAGES)
    (maps,) = inside.class_attention.values()
    assert maps.shape == (4, 1, 1, 16)


def test_names_belong_to_one_family_each():
    names = list_models()
    assert len(names) == len(set(names)) and {family.name for family in FAMILIES} >= {"cait"}
    assert list_models("cait_xxs24_*") == ["cait_xxs24_224", "cait_xxs24_384"] and list_models("nothing*") == []
    published = models.published_models()
    assert len(published) == len(set(published)) == 66 and models.published_models("cait_tiny_32") == []
    assert models.published_models("resmlp_12_224") == ["resmlp_12_224", "resmlp_12_224.dist", "resmlp_12_224.dino"]
    with pytest.raises(ValueError, match="unknown family 'resnet': expected cait"):
        models.family_named("resnet")


# ---- configurations


def test_a_configuration_is_frozen_and_plain():
    config = CaiT(**{**SMALL, "img_size": np.int64(16), "dim": np.int32(12), "layer_scale": np.float32(0.5)}).config
    assert config == CaiT(**SMALL).config and hash(config) == hash(CaiT(**SMALL).config)
    assert config.img_size == (16, 16) and type(config.dim) is int and type(config.layer_scale) is float
    assert (config.grid, config.patches) == ((4, 4), 16)
    with pytest.raises(FrozenInstanceError):
        config.dim = 24
    assert config.changed(dim=24, depth=None) == CaiT(**{**SMALL, "dim": 24}).config
    assert config.to_json()["img_size"] == [16, 16]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dim": None}, "dim must be an integer, got None"),
        ({"dim": "12"}, "dim must be an integer, got '12'"),
        ({"mlp_ratio": "wide"}, "mlp_ratio must be a number, got 'wide'"),
        ({"img_size": 16.0}, "img_size must be an integer or two, got 16.0"),
        ({"img_size": [16, 16, 3]}, "img_size must be an integer or two, got [16, 16, 3]"),
        ({"depth_token_only": 0}, "depth_token_only must be at least 1, got 0"),
        ({"drop_path_rate": float("nan")}, "drop_path_rate must be a number, got nan"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(change, sentence):
    right = CaiT(**SMALL).config
    with pytest.raises(ValueError) as error:
        CaiTConfig.from_json({**right.to_json(), **change})
    assert str(error.value) == sentence
    with pytest.raises(ValueError) as error:
        CaiT(**{**SMALL, **change})
    if None not in change.values():
        assert str(error.value) == f"CaiT: {sentence}"


@pytest.mark.parametrize("content", [None, [], {}, {"dim": 12}, {**CaiT(**SMALL).config.to_json(), "colour": 3}])
def test_json_of_no_configuration_names_the_entries(content):
    with pytest.raises(ValueError, match="expected a configuration with the entries depth, depth_token_only, dim, "):
        CaiTConfig.from_json(content)


def test_an_error_of_create_model_names_the_model():
    with pytest.raises(ValueError, match="cait_tiny_32: an image of 33 x 33 does not divide into patches of 4"):
        minicait.create_model("cait_tiny_32", img_size=33)


def test_what_a_subclass_forgot_is_named():
    class Plain(Model): ...

    with pytest.raises(TypeError, match=r"Plain needs a method outputs\(self, images\)"):
        Plain()(IMAGES)
    with pytest.raises(TypeError, match=r"Config needs a method cost\(self\)"):
        Config(10, 16, 4, 12, 2, 0.0).cost()


# ---- files


def test_a_file_says_its_family(tmp_path):
    minicait.save_weights(CaiT(**SMALL), tmp_path / "w.safetensors", ["a", "b", "c"])
    assert open_weights(tmp_path / "w.safetensors").info.family == "cait"
    assert minicait.load_model(tmp_path / "w.safetensors")[1].family == "cait"


def test_files_of_version_0_1_still_load(tmp_path):
    """Their metadata, as that version wrote it, knows of no families."""
    model, path = CaiT(**{**SMALL, "img_size": (8, 16)}, seed=3), tmp_path / "old.safetensors"
    config = {"num_classes": 3, "img_size": [8, 16], "patch_size": 4, "dim": 12, "depth": 2, "heads": 3,
              "depth_token_only": 2, "layer_scale": 0.5, "drop_path_rate": 0.0, "mlp_ratio": 4.0}  # fmt: skip
    metadata = {"config": config, "class_names": ["a", "b", "c"], "mean": [0.485, 0.456, 0.406],
                "std": [0.229, 0.224, 0.225], "crop_ratio": 0.9}  # fmt: skip
    save_file(model.state_dict(), path, {"format": "np", "minicait": json.dumps(metadata)})
    again, info = minicait.load_model(path)
    assert type(again) is CaiT and again.config == model.config == info.config
    assert (info.family, info.class_names, info.crop_ratio) == ("cait", ["a", "b", "c"], 0.9)
    other = CaiT(**{**SMALL, "img_size": (8, 16)}, seed=4)
    minicait.load_weights(other, path)
    for loaded in (again, other):
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(loaded.state_dict()[name], value)
    assert main(["weights", "info", str(path)]) == 0


def test_a_file_of_a_family_that_is_not_there(tmp_path):
    metadata = {"family": "vgg", "config": CaiT(**SMALL).config.to_json()}
    save_file(CaiT(**SMALL).state_dict(), tmp_path / "w.safetensors", {"minicait": json.dumps(metadata)})
    with pytest.raises(ValueError, match=r"w\.safetensors is damaged: .*unknown family 'vgg': expected cait"):
        minicait.load_model(tmp_path / "w.safetensors")


class Almost(CaiT):
    """A subclass may compute something else than its family."""


@pytest.mark.parametrize("model", [Variant(**SMALL), Almost(**SMALL), nn.Linear(3, 4)], ids=lambda m: type(m).__name__)
def test_a_model_of_no_family_is_not_saved(model, tmp_path):
    with pytest.raises(ValueError) as error:
        minicait.save_weights(model, tmp_path / "w.safetensors")
    kind = type(model).__name__
    assert str(error.value) == f"save_weights: {kind} is not a model of a family, so no file can describe it"
    assert not list(tmp_path.iterdir())
