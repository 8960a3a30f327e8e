"""Files that claim a model which they do not hold, and weights that are not finite."""

import json
import warnings

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import minicait
from minicait.files.pretrained import recognised
from minicait.files.weights import Info, WeightFile, load_weights, open_weights
from minicait.models import FAMILIES, Config, Cost, check_fits, find_model
from minicait.models.cait import CaiT
from minicait.train.evaluate import predict
from tests.attack.bounded import refused, run

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 5}
CONFIG = CaiT(**SMALL).config
NAMES = list("abcde")


@pytest.fixture
def image(tmp_path):
    Image.new("RGB", (16, 16), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


def weights(path, config=None, info=None, **tensors):
    """A file of ours with other claims and other values."""
    whole = {"family": "cait", "config": CONFIG.to_json() | (config or {}), "class_names": NAMES} | (info or {})
    state = {name: value.copy() for name, value in CaiT(**SMALL).state_dict().items()} | tensors
    save_file(state, path, {"minicait": json.dumps(whole)})
    return path


CONFIGS = {
    "a dim of 9000": ({"dim": 9000}, "parameters, but there are only"),
    "a dim of 10**12": ({"dim": 10**12}, "dim is larger than 1,000,000,000"),
    "a depth of 100,000": ({"depth": 100_000}, "100,002 blocks"),
    "a depth of 10**9": ({"depth": 10**9}, "1,000,000,002 blocks"),
    "a depth of class attention": ({"depth_token_only": 50_000}, "50,002 blocks"),
    "10**9 classes": ({"num_classes": 10**9}, "class names do not fit a model with 1000000000 classes"),
    "10**4000 classes": ({"num_classes": 10**4000}, "num_classes is larger"),
    "an image of 10**6": ({"img_size": [10**6, 10**6]}, "parameters, but there are only"),
    "an image of 10**100": ({"img_size": 10**100}, "img_size is larger"),
    "patches of 10**9": ({"img_size": 10**9, "patch_size": 10**9}, "parameters, but there are only"),
    "ten million heads": ({"dim": 12 * 10**6, "heads": 10**7}, "does not divide"),
    "a wide mlp": ({"mlp_ratio": 1e7}, "parameters, but there are only"),
    "a wider mlp": ({"mlp_ratio": 1e308}, "mlp_ratio must"),
    "an infinite mlp": ({"mlp_ratio": float("inf")}, "mlp_ratio must be a number"),
    "no mlp": ({"mlp_ratio": float("nan")}, "mlp_ratio must be a number"),
    "a negative mlp": ({"mlp_ratio": -4.0}, "mlp_ratio must"),
    "a huge integer for a float": ({"mlp_ratio": 10**400}, "mlp_ratio must be a number"),
    "an infinite LayerScale": ({"layer_scale": float("inf")}, "layer_scale must be a number"),
    "a string for a float": ({"mlp_ratio": "4"}, "mlp_ratio must be a number"),
    "True for an integer": ({"depth": True}, "depth must be an integer"),
    "a fraction": ({"depth": 2.5}, "depth must be an integer"),
    "null": ({"depth": None}, "depth must be an integer"),
    "a list": ({"depth": [2] * 10**5}, "depth must be an integer"),
    "an image of 4096": ({"img_size": 4096}, "parameters, but there are only"),
    "another entry": ({"more": 1}, "expected a configuration with the entries"),
}


@pytest.mark.parametrize(("config", "because"), CONFIGS.values(), ids=CONFIGS)
def test_claims_of_a_giant_model(tmp_path, image, config, because):
    path = weights(tmp_path / "w.safetensors", config)
    refused("weights", "info", path, because=because)
    refused("predict", image, "--weights", path, "--device", "cpu", because=because)


# ---- the other families


OTHERS = ["deit_mini_32", "deit_mini_distilled_32", "deit3_mini_32", "resmlp_mini_32", "patchconvnet_mini_32",
          "patchconvnet_mini_multi_32", "lvvit_mini_32"]  # fmt: skip
FEW = "parameters, but there are only"
OF_ALL = {
    "a wide model": ({"dim": 9600}, FEW),
    "a wider model": ({"dim": 10**12}, "dim is larger than 1,000,000,000"),
    "a deep model": ({"depth": 10**9}, "1,000,000,0"),
    "as deep as the file has tensors": ({"depth": 400}, FEW),
    "10**9 classes": ({"num_classes": 10**9}, "5 class names do not fit a model with 1000000000 classes"),
    "a large image": ({"img_size": 10**6}, ("only", "too much memory")),
    "patches of 2**29": ({"img_size": 2**29, "patch_size": 2**29}, ("only", "multiple of half of it")),
    "a string": ({"drop_path_rate": "0"}, "drop_path_rate must be a number"),
}
OF_ONE = {
    ("deit_mini_32", "another token"): ({"distilled": True}, FEW),
    ("deit_mini_32", "a number for a truth"): ({"distilled": 1}, "distilled must be True or False"),
    ("deit3_mini_32", "heads that do not divide"): ({"heads": 10**9}, "does not divide"),
    ("resmlp_mini_32", "a wide mlp"): ({"mlp_ratio": 1e7}, FEW),
    ("resmlp_mini_32", "another stage"): ({"class_mlp": True}, FEW),
    ("patchconvnet_mini_32", "a token for each class"): ({"multi_class": True}, FEW),
    ("lvvit_mini_32", "no residual"): ({"residual_factor": 1e300}, "residual_factor must be from 0.001 to 1000"),
    ("lvvit_mini_32", "division by zero"): ({"residual_factor": 0}, "residual_factor must be from 0.001 to 1000"),
    ("lvvit_mini_32", "a wide stem"): ({"stem_channels": 10**9}, FEW),
}
CLAIMS = OF_ONE | {(name, what): claim for name in OTHERS for what, claim in OF_ALL.items()}


def claimed(path, name, config, **info):
    """A file of a small model of a family, with other claims."""
    model = minicait.create_model(name, 5)
    whole = {"family": find_model(name)[0].name, "config": model.config.to_json() | config, "class_names": NAMES} | info
    save_file(dict(model.state_dict()), path, {"minicait": json.dumps(whole)})
    return path


@pytest.mark.parametrize(("name", "what"), CLAIMS, ids=" ".join)
def test_claims_of_a_giant_model_of_another_family(tmp_path, image, name, what):
    config, reasons = CLAIMS[name, what]
    path = claimed(tmp_path / "w.safetensors", name, config)
    result = refused("predict", image, "--weights", path, "--device", "cpu", because="w.safetensors is damaged")
    assert any(reason in result.err for reason in ([reasons] if isinstance(reasons, str) else reasons)), result.err


def test_a_head_for_every_class_needs_tensors_for_every_class(tmp_path, image):
    """A file with many values in few tensors: without a bound, a million modules would be made."""
    config = find_model("patchconvnet_mini_multi_32")[1].changed(num_classes=10**6, dim=2, patch_size=4, depth=0)
    assert config.cost().parameters < 6 * 10**6
    metadata = {"family": "patchconvnet", "config": config.to_json()}
    save_file({"x": np.zeros(6 * 10**6, np.uint8)}, tmp_path / "w.safetensors", {"minicait": json.dumps(metadata)})
    because = "1,000,001 blocks"
    refused("predict", image, "--weights", tmp_path / "w.safetensors", "--device", "cpu", because=because)


SHAPES = {  # what config_of reads; everything else is empty
    "deit_mini_32": {"pos_embed": (1, 2, 9600), "patch_embed.proj.weight": (0, 16),
                     "blocks.0.mlp.fc1.weight": (38400, 0)},
    "deit_mini_distilled_32": {"pos_embed": (1, 3, 9600), "patch_embed.proj.weight": (0, 16),
                               "blocks.0.mlp.fc1.weight": (38400, 0)},
    "deit3_mini_32": {"pos_embed": (1, 1, 9600), "patch_embed.proj.weight": (0, 16),
                      "blocks.0.mlp.fc1.weight": (38400, 0)},
    "resmlp_mini_32": {"norm.alpha": (9600,), "blocks.0.attn.bias": (1,), "patch_embed.proj.weight": (0, 16),
                       "blocks.0.mlp.fc1.weight": (38400, 0)},
    "patchconvnet_mini_32": {"blocks.0.attn.qkv_pos.0.weight": (9600, 0)},
    "patchconvnet_mini_multi_32": {"blocks.0.attn.qkv_pos.0.weight": (9600, 0)},
    "lvvit_l_224": {"pos_embed": (1, 2, 768), "patch_embed.proj.weight": (0, 8), "patch_embed.conv1.weight": (10**6, 0),
                    "blocks.0.mlp.fc1.weight": (2304, 0)},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_claim_a_giant_model_of_another_family(tmp_path, image, name):
    family, config = find_model(name)
    names = family.model.shapes_of(config.changed(num_classes=1000))
    shapes = dict.fromkeys(names, (0,)) | SHAPES[name] | ({"head.weight": (1000, 0)} if "head.weight" in names else {})
    save_file({key: np.zeros(shape, np.uint8) for key, shape in shapes.items()}, tmp_path / "w.safetensors")
    because = f"has the names of a {family.name}, but the model of its configuration has"
    refused("predict", image, "--weights", tmp_path / "w.safetensors", "--device", "cpu", because=because)


HOSTILE = [(), (0,), (2**62, 0), (0, 2**62), (1, 2**31, 0), (3,) * 8]


@pytest.mark.parametrize("shape", HOSTILE, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_shapes_that_nobody_expects(tmp_path, name, shape):
    """Every tensor in turn has an odd shape: that is a sentence, whatever is read of it."""
    family, config = find_model(name)
    shapes = family.model.shapes_of(config.changed(num_classes=5))
    for key in shapes:
        file = WeightFile(tmp_path / "w.pth", shapes | {key: shape}, lambda name: np.zeros(0))
        try:
            recognised(file)
        except ValueError as error:
            assert "w.pth" in str(error)


INFOS = {
    "too few names": ({"class_names": ["a"]}, "1 class names do not fit a model with 5 classes"),
    "numbers as names": ({"class_names": [1, 2, 3, 4, 5]}, "class_names must be a list of strings"),
    "one string": ({"class_names": "abcde"}, "class_names must be a list of strings"),
    "an object of names": ({"class_names": dict.fromkeys(NAMES, 1)}, "class_names must be a list of strings"),
    "a mean of one": ({"mean": 0.5}, "must be numbers up to 1000"),
    "two means": ({"mean": [0.5, 0.5]}, "three numbers each"),
    "a mean of text": ({"mean": ["a", "b", "c"]}, "must be numbers up to 1000"),
    "a mean of null": ({"mean": None}, "must be numbers up to 1000"),
    "a mean of true": ({"mean": [True, True, True]}, "must be numbers up to 1000"),
    "a mean of NaN": ({"mean": [float("nan")] * 3}, "must be numbers up to 1000"),
    "a huge mean": ({"mean": [10**400] * 3}, "must be numbers up to 1000"),
    "a std of zero": ({"std": [0, 1, 1]}, "std at least 0.001"),
    "a negative std": ({"std": [1, -1, 1]}, "std at least 0.001"),
    "an infinite std": ({"std": [1, float("inf"), 1]}, "must be numbers up to 1000"),
    "a crop of zero": ({"crop_ratio": 0}, "is not in [0.01, 1]"),
    "a std of nearly zero": ({"std": [1e-320] * 3}, "std at least 0.001"),
    "a large mean": ({"mean": [1e29] * 3}, "must be numbers up to 1000"),
    "a long class name": ({"class_names": ["x" * 10**6, "b", "c"]}, "a class name has more than 500 characters"),
    "a crop of two": ({"crop_ratio": 2}, "is not in [0.01, 1]"),
    "a crop of text": ({"crop_ratio": "1"}, "must be numbers up to 1000"),
    "an unknown family": ({"family": "x" * 10**6}, "unknown family"),
    "a family that is a list": ({"family": ["cait"]}, "unknown family"),
    "no configuration": ({"config": None}, "expected a configuration"),
}


@pytest.mark.parametrize(("info", "because"), INFOS.values(), ids=INFOS)
def test_claims_about_images_and_classes(tmp_path, image, info, because):
    path = weights(tmp_path / "w.safetensors", info=info)
    refused("weights", "info", path, because=because)
    refused("predict", image, "--weights", path, "--device", "cpu", because=because)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "7", '"a"', "{", '{"config": NaN}'])
def test_metadata_that_is_no_description(tmp_path, text):
    save_file({"x": np.ones(1)}, tmp_path / "w.safetensors", {"minicait": text})
    refused("weights", "info", tmp_path / "w.safetensors", because="w.safetensors is damaged: its metadata does not")


def test_right_claims_are_believed(tmp_path, image):
    info = {"mean": [0, 0.5, 1], "std": [1, 1, 1e-3], "crop_ratio": 1, "class_names": None, "later": [1]}
    path = weights(tmp_path / "w.safetensors", info=info)
    assert run("weights", "info", path).code == 0
    result = run("predict", image, "--weights", path, "--device", "cpu", "--json")
    assert result.code == 0 and json.loads(result.out)[0]["guesses"][0]["class"].startswith("class ")
    assert open_weights(path).info == Info("cait", CONFIG, None, (0.0, 0.5, 1.0), (1.0, 1.0, 1e-3), 1.0)


def test_shapes_that_claim_a_giant_model(tmp_path, image):
    """Files without metadata: a few tensors have the names of a CaiT, and hardly any values."""
    shapes = {
        "pos_embed": (1, 1, 9000), "patch_embed.proj.weight": (0, 16), "head.weight": (1000, 0),
        "blocks.0.attn.proj_l.weight": (4, 0), "blocks.0.mlp.fc1.weight": (36_000, 0), "blocks_token_only.0": (0,),
    }  # fmt: skip
    names = (name for name in CaiT(**SMALL).state_dict() if name.startswith("blocks.0."))
    shapes = dict.fromkeys(names, (0,)) | shapes
    claimed = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    save_file(claimed, tmp_path / "w.safetensors")
    np.savez_compressed(tmp_path / "w.npz", **claimed)
    assert (tmp_path / "w.npz").stat().st_size < 10_000
    for path in (tmp_path / "w.safetensors", tmp_path / "w.npz"):
        because = "has the names of a cait, but the model of its configuration has 2 blocks and 1,9"
        refused("predict", image, "--weights", path, "--device", "cpu", because=because)


@pytest.mark.parametrize("name", [name for family in FAMILIES for name in family.presets])
def test_every_model_fits_its_own_shapes_and_no_larger_one_does(name):
    family, config = find_model(name)
    shapes = family.model.shapes_of(config)
    check_fits(config, shapes)
    larger = [{"depth": 10 * config.depth}, {"num_classes": 10**5}, {"dim": 2 * config.dim}]
    if family.name == "grafit":  # it has no parameters for a class, but a place in memory for an image
        larger[1] = {"memory": 10**5}
    for change in larger:
        with pytest.raises(ValueError, match=r"parameters.*, but there are only"):
            check_fits(config.changed(**change), shapes)


def test_a_model_without_positions_may_not_claim_giant_images():
    class Free(Config):
        def cost(self):
            return Cost(1, 1, 1, 1)

    check_fits(Free(1, (4096, 4096), 1, 1, 1, 0.0), {"x": (1,)})
    with pytest.raises(ValueError, match="images of 4,097 pixels are larger than 4,096"):
        check_fits(Free(1, (4097, 4097), 1, 1, 1, 0.0), {"x": (1,)})


def test_shapes_without_memory_are_those_of_the_model():
    model = CaiT(**SMALL)
    assert CaiT.shapes_of(CONFIG) == {name: tensor.shape for name, tensor in model.named_tensors()}
    assert model.head.weight.data.any(), "weights are drawn again after it"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_costs_of_absurd_sizes_are_exact(family):
    smallest = min(family.presets.values(), key=lambda config: config.cost().parameters)
    config = smallest.changed(num_classes=10**9, img_size=2**29, dim=96 * 10**6, depth=10**9)
    assert 10**25 < config.cost().parameters < 10**45 and len(str(config.cost().forward_bytes)) < 60


# ---- weights that are not finite


@pytest.mark.parametrize("command", ["predict", "eval", "explain", "train"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, image, command, value):
    norm = np.ones(12, np.float32)
    norm[7] = value
    path = weights(tmp_path / "w.safetensors", **{"blocks.1.norm2.bias": norm})
    arguments = {
        "predict": ["predict", image, "--json"], "eval": ["eval", "--val-images", "4"],
        "explain": ["explain", image, "--out", tmp_path / "r.html"], "train": ["train", "--out", tmp_path / "runs"],
    }[command]  # fmt: skip
    refused(*arguments, "--weights", path, because="blocks.1.norm2.bias has values that are not finite")
    assert not (tmp_path / "r.html").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_values_that_overflow_are_not_finite_and_change_nothing(tmp_path, suffix):
    state = {name: value.astype(np.float64) + 1 for name, value in CaiT(**SMALL).state_dict().items()}
    state["norm.bias"][3] = 1e300
    path = tmp_path / f"w{suffix}"
    np.savez(path, **state) if suffix == ".npz" else save_file(state, path)
    model = CaiT(**SMALL)
    before = {name: value.copy() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=rf"w\{suffix} cannot be used: norm\.bias has values that are not finite"):
        load_weights(model, path)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("images", [1, 40])
def test_finite_weights_that_overflow_later(tmp_path, image, images):
    huge = {name: np.full_like(value, 3e38) for name, value in CaiT(**SMALL).state_dict().items()}
    path = weights(tmp_path / "w.safetensors", **huge)
    for i in range(images):
        Image.new("RGB", (16, 16), (i, i, i)).save(tmp_path / f"{i}.png")
    because = "the model's outputs are not finite"
    refused("predict", *(tmp_path / f"{i}.png" for i in range(images)), "--weights", path, "--json", because=because)
    refused("explain", image, "--weights", path, "--out", tmp_path / "r.html", because=because)
    model = minicait.load_model(path)[0]
    with warnings.catch_warnings(), pytest.raises(ValueError, match=because):
        warnings.simplefilter("error")
        predict(model, np.ones((images, 3, 16, 16), np.float32))


def test_evaluating_weights_that_overflow(tmp_path):
    model = CaiT(**SMALL | {"num_classes": 10})
    minicait.save_weights(model, tmp_path / "w.safetensors")
    evaluate = ("eval", "--val-images", 40, "--device", "cpu", "--json", "--weights", tmp_path / "w.safetensors")
    assert json.loads(run(*evaluate).out)["images"] == 40
    model.head.weight.data[...] = 3e38
    minicait.save_weights(model, tmp_path / "w.safetensors")
    refused(*evaluate, because="the model's outputs are not finite")


def test_names_are_printed_without_their_escapes(tmp_path):
    names = {"a\x1b[2Jb": np.ones(1), "c\nd": np.ones(1), "\u202eabc": np.ones(1)}
    save_file(names, tmp_path / "w.safetensors")
    result = run("weights", "info", tmp_path / "w.safetensors")
    assert result.code == 0 and "a\\x1b[2Jb" in result.out and "c\\nd" in result.out and "\\u202eabc" in result.out
    path = weights(tmp_path / "v.safetensors", info={"class_names": ["\x1b]0;", "b" * 400, "c", "d", "e"]})
    result = run("weights", "info", path)
    assert result.code == 0 and "classes: \\x1b]0;, bbb" in result.out and len(result.out) < 10_000
    assert json.loads(run("weights", "info", path, "--json").out)["info"]["class_names"][2] == "c"


def test_a_small_file_that_claims_many_tokens(tmp_path, image):
    """Attention takes memory in the square of the number of patches, whatever the parameters take."""
    sizes = {"num_classes": 2, "dim": 2, "heads": 2, "depth": 1}
    large = CaiT(img_size=4096, patch_size=32, **sizes)
    minicait.save_weights(large, tmp_path / "large.safetensors")
    because = "a forward pass of 16,384 patches would take too much memory"
    refused("predict", image, "--weights", tmp_path / "large.safetensors", because=because)
    deep = CaiT(img_size=64, patch_size=1, **sizes | {"depth": 40})
    minicait.save_weights(deep, tmp_path / "deep.safetensors")
    explain = ["explain", image, "--weights", tmp_path / "deep.safetensors", "--out", tmp_path / "r.html"]
    refused(*explain, because="a report keeps all attention maps")
