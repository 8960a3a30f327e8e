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
from tests.models.small_models import SMALL_MODELS

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 3, "layer_scale": 0.5}
IMAGES = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)


@pytest.mark.parametrize("name", list_models())
def test_every_name(name):
    family, config = find_model(name)
    assert family.presets[name] is config and type(config) is family.model.config_type
    assert family.model.config_type.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert all(isinstance(n, int) and n > 0 for n in config.cost())
    whole = config.cost().parameters < 2e6  # of a large model, one block is made
    shallow = config.changed(num_classes=10, depth=config.depth if whole else 1)
    model = minicait.create_model(name, 10) if whole else family.model.from_config(shallow)
    assert type(model) is family.model and models.family_of(model) is family and model.config == shallow
    assert model.parameter_count() == model.cost().parameters == shallow.cost().parameters
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


PARAMETERS = {  # as published, with 1000 classes
    "deit_tiny_patch16_224": 5_717_416, "deit_small_patch16_224": 22_050_664, "deit_base_patch16_224": 86_567_656,
    "deit_base_patch16_384": 86_859_496, "deit_tiny_distilled_patch16_224": 5_910_800,
    "deit_small_distilled_patch16_224": 22_436_432, "deit_base_distilled_patch16_224": 87_338_192,
    "deit_base_distilled_patch16_384": 87_630_032, "deit3_tiny_patch16_224": 5_721_832,
    "deit3_small_patch16_224": 22_059_496, "deit3_small_patch16_384": 22_205_416,
    "deit3_medium_patch16_224": 38_849_512, "deit3_base_patch16_224": 86_585_320,
    "deit3_base_patch16_384": 86_877_160, "deit3_large_patch16_224": 304_374_760,
    "deit3_large_patch16_384": 304_763_880, "deit3_huge_patch14_224": 632_126_440, "resmlp_12_224": 15_350_872,
    "resmlp_24_224": 30_020_680, "resmlp_36_224": 44_690_488, "resmlp_big_24_224": 129_138_280,
    "resmlp_big_24_patch16_224": 115_736_776, "resmlp_12_patch14_224": 15_607_912, "resmlp_12_patch8_224": 22_051_624,
    "resmlp_12_class_mlp_224": 17_719_396, "patchconvnet_s20_224": 10_235_896, "patchconvnet_s36_224": 16_233_976,
    "patchconvnet_s60_224": 25_231_096, "patchconvnet_s60_384": 25_231_096, "patchconvnet_s60_512": 25_231_096,
    "patchconvnet_s60_multi_224": 25_614_712, "patchconvnet_s120_224": 47_723_896, "patchconvnet_b36_224": 63_699_976,
    "patchconvnet_b60_224": 99_388_936, "patchconvnet_b60_384": 99_388_936, "patchconvnet_b120_224": 188_611_336,
    "patchconvnet_b120_384": 188_611_336, "patchconvnet_l60_224": 176_009_576, "patchconvnet_l60_384": 176_009_576,
    "patchconvnet_l120_224": 334_294_376, "patchconvnet_l120_384": 334_294_376, "lvvit_t_224": 8_534_720,
    "lvvit_s_224": 26_151_824, "lvvit_s_384": 26_297_744, "lvvit_m_224": 55_830_544, "lvvit_m_384": 56_025_104,
    "lvvit_m_448": 56_131_600, "lvvit_l_224": 150_021_968, "lvvit_l_288": 150_120_272, "lvvit_l_448": 150_473_552,
    "lvvit_l_512": 150_657_872,
}  # fmt: skip
GFLOPS = {  # as the papers count them
    "deit_tiny_patch16_224": 1.3, "deit_small_patch16_224": 4.6, "deit_base_patch16_224": 17.5,
    "deit_base_patch16_384": 55.5, "deit3_medium_patch16_224": 8.0, "deit3_large_patch16_384": 191.2,
    "deit3_huge_patch14_224": 167.4, "resmlp_12_224": 3.0, "resmlp_24_224": 6.0, "resmlp_big_24_224": 100.2,
    "resmlp_12_patch8_224": 14.0, "patchconvnet_s60_224": 4.0, "patchconvnet_s120_224": 7.5,
    "patchconvnet_b60_224": 15.8, "patchconvnet_b120_224": 29.9, "patchconvnet_l120_224": 53.0,
    "patchconvnet_s60_multi_224": 5.3, "lvvit_t_224": 2.87, "lvvit_s_224": 6.57, "lvvit_m_224": 12.74,
    "lvvit_l_224": 34.78, "lvvit_s_384": 22.17, "lvvit_l_448": 157.0,
}  # fmt: skip


def test_parameters_of_every_published_size():
    ours = {name for name in list_models() if "mini" not in name and not name.startswith("cait")}
    assert ours == set(PARAMETERS)
    for name, count in PARAMETERS.items():
        assert find_model(name)[1].cost().parameters == count, name


def test_multiply_adds_are_those_of_the_papers():
    for name, published in GFLOPS.items():
        assert abs(find_model(name)[1].cost().multiply_adds / 1e9 - published) < 0.05 + 0.013 * published, name


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_memory_estimate_is_that_of_the_graph(name):
    model = SMALL_MODELS[name]()
    node = model(IMAGES[:1].copy()).node
    own = {id(p.data) for p in model.parameters()}
    stack, seen, arrays = [node], set(), {}
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
    assert model.cost().activation_bytes == pytest.approx(sum(arrays.values()), rel=0.03)


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
    assert str(error.value) == f"save_weights: {kind} is no model of a family, so no file can describe it"
    assert not list(tmp_path.iterdir())
