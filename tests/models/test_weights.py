"""Weights in and out: every format, what does not fit, what is dangerous, and what is damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minicait
from minicait.cli import main
from minicait.files.weights import open_weights
from minicait.models.cait import CaiT
from minicait.models.positions import bicubic, resize_positions
from tests.golden.recipe import FOLDER, MODELS, random_weights

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 5, "layer_scale": 0.5}
PTH = FOLDER / "deep.pth"  # written by PyTorch


def random_model(**changes) -> CaiT:
    model = CaiT(**{**SMALL, **changes})
    model.load_state_dict(random_weights({name: p.shape for name, p in model.named_parameters()}))
    return model


def assert_same(a: CaiT, b: CaiT) -> None:
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)


def test_a_file_alone_rebuilds_the_model(tmp_path):
    model = random_model()
    path = tmp_path / "model.safetensors"
    names = ["a", "b", "c", "d", "é"]
    minicait.save_weights(model, path, names, mean=(0.5, 0.5, 0.5), std=(1, 1, 1), crop_ratio=0.9)
    again, info = minicait.load_model(path)
    assert_same(again, model)
    assert again.config == model.config and not again.training
    assert (info.class_names, tuple(info.mean), info.crop_ratio) == (names, (0.5, 0.5, 0.5), 0.9)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_origin_of_weights(tmp_path, capsys):
    path = tmp_path / "w.safetensors"
    minicait.save_weights(random_model(), path, origin="flowers-1, epoch 9 of 10")
    assert minicait.load_model(path)[1].origin == "flowers-1, epoch 9 of 10"
    assert main(["weights", "info", str(path)]) == 0
    assert "origin: flowers-1, epoch 9 of 10\n" in capsys.readouterr().out
    minicait.save_weights(random_model(), path)
    assert minicait.load_model(path)[1].origin is None and b"origin" not in path.read_bytes()
    for wrong in ("x" * 201, 7, ["x"]):
        with pytest.raises(ValueError, match="origin must be a string of at most 200 characters"):
            minicait.save_weights(random_model(), path, origin=wrong)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_plain_files(tmp_path, prefix, suffix):
    from safetensors.numpy import save_file

    model, path = random_model(), tmp_path / f"plain{suffix}"
    state = {prefix + name: value for name, value in model.state_dict().items()}
    np.savez(path, **state) if suffix == ".npz" else save_file(state, path)
    loaded = CaiT(**SMALL)
    minicait.load_weights(loaded, path)
    assert_same(loaded, model)
    built, info = minicait.load_model(path)  # the shapes say which model it is
    assert_same(built, model)
    same = ("img_size", "patch_size", "dim", "depth", "heads", "depth_token_only", "mlp_ratio", "num_classes")
    assert all(getattr(built.config, k) == getattr(model.config, k) for k in same) and info.class_names is None


def test_a_checkpoint_of_pytorch_without_pytorch():
    config = MODELS["deep"]
    model = CaiT(**config)
    minicait.load_weights(model, PTH)
    want = random_weights({name: p.shape for name, p in model.named_parameters()})
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, want[name].astype(np.float32))
    with pytest.raises(ValueError, match="only training checkpoints of PyTorch have averaged weights"):
        open_weights(FOLDER / "deep.npz", ema=True)
    averaged = open_weights(PTH, ema=True)
    assert averaged.shapes == {"cls_token": (1, 1, 16)}
    np.testing.assert_array_equal(averaged.read("cls_token"), 2 * want["cls_token"].astype(np.float32))


def test_a_damaged_value_changes_nothing(tmp_path):
    """The file opens, all shapes fit, and only then a checksum turns out wrong."""
    model = random_model()
    for path in (tmp_path / "w.npz", tmp_path / "w.pth"):
        if path.suffix == ".npz":
            np.savez(path, **{name: value + 1 for name, value in model.state_dict().items()})
            target = model
        else:
            path.write_bytes(PTH.read_bytes())
            target = CaiT(**MODELS["deep"])
        before = {name: value.copy() for name, value in target.state_dict().items()}
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(64)
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path.name} is damaged"):
            minicait.load_weights(target, path)
        for name, value in target.state_dict().items():
            np.testing.assert_array_equal(value, before[name])


def damaged(tmp_path: Path, how: str) -> Path:
    model = random_model()
    path = tmp_path / f"damaged.{how.split()[0]}"
    if path.suffix == ".safetensors":
        minicait.save_weights(model, path)
    elif path.suffix == ".npz":
        np.savez(path, **model.state_dict())
    else:
        path.write_bytes(PTH.read_bytes())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if how.endswith("cut") else b"nonsense" + content[8:2000])
    return path


@pytest.mark.parametrize(
    "how", [f"{kind} {what}" for kind in ("safetensors", "npz", "pth") for what in ("cut", "noise")]
)
def test_damaged_files_are_refused_and_change_nothing(tmp_path, how):
    path = damaged(tmp_path, how)
    model = random_model()
    with pytest.raises(ValueError, match=f"{path.name} is (damaged|not a zip archive)"):
        minicait.load_weights(model, path)
    assert_same(model, random_model())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("missing.npz", None, "there is no weights file"),
        ("weights.bin", b"x", "expected a file that ends in .safetensors, .npz, .pth"),
        ("empty.npz", {}, "empty.npz holds no tensors"),
        ("objects.npz", {"a": np.array([{}], dtype=object)}, "objects.npz"),
    ],
)
def test_files_that_are_none(tmp_path, name, content, sentence):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(ValueError, match=sentence):
        minicait.load_weights(CaiT(**SMALL), path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("norm.bias"), "norm.bias is missing"),
        (lambda s: s.update(extra=np.ones(1)), "extra is unknown"),
        (lambda s: s.update({"norm.bias": np.ones(7)}), r"norm.bias must have shape \(12,\), got \(7,\)"),
        (
            lambda s: s.update({"pos_embed": np.ones((1, 15, 12))}),
            "15 positions are not a grid of 4 x 4",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(tmp_path, change, sentence):
    state = dict(random_model().state_dict())
    change(state)
    np.savez(tmp_path / "w.npz", **state)
    model = CaiT(**SMALL)
    with pytest.raises(ValueError, match=f"w.npz does not fit.*{sentence}"):
        minicait.load_weights(model, tmp_path / "w.npz")
    assert_same(model, CaiT(**SMALL))


def test_another_number_of_classes_needs_a_word(tmp_path):
    path = tmp_path / "five.safetensors"
    minicait.save_weights(random_model(), path)
    model = CaiT(**{**SMALL, "num_classes": 3}, seed=4)
    head = model.head.weight.numpy().copy()
    with pytest.raises(ValueError, match=r"is for 5 classes, the model has 3: .* new_head=True"):
        minicait.load_weights(model, path)
    minicait.load_weights(model, path, new_head=True)
    np.testing.assert_array_equal(model.head.weight.numpy(), head)
    np.testing.assert_array_equal(model.norm.weight.numpy(), random_model().norm.weight.numpy())


def test_positions_are_resized_for_another_image_size(tmp_path):
    path = tmp_path / "sixteen.safetensors"
    source = random_model()
    minicait.save_weights(source, path)
    model = CaiT(**{**SMALL, "img_size": (24, 32)})
    minicait.load_weights(model, path)
    want = resize_positions(source.pos_embed.numpy(), (4, 4), (6, 8))
    np.testing.assert_array_equal(model.pos_embed.numpy(), want)


def test_positions_of_another_grid_with_as_many_patches(tmp_path):
    path = tmp_path / "wide.safetensors"
    wide = random_model(img_size=(8, 32))
    minicait.save_weights(wide, path)
    for size, grid in (((32, 8), (8, 2)), (16, (4, 4))):
        model = CaiT(**{**SMALL, "img_size": size})
        minicait.load_weights(model, path)
        want = resize_positions(wide.pos_embed.numpy(), (2, 8), grid)
        np.testing.assert_array_equal(model.pos_embed.numpy(), want)


def test_a_backbone_without_a_head_takes_a_new_one(tmp_path):
    state = {name: value for name, value in random_model().state_dict().items() if not name.startswith("head")}
    np.savez(tmp_path / "w.npz", **state)
    model = CaiT(**SMALL)
    minicait.load_weights(model, tmp_path / "w.npz", new_head=True)
    np.testing.assert_array_equal(model.norm.weight.numpy(), state["norm.weight"])
    with pytest.raises(ValueError, match=r"head\.weight is missing"):
        minicait.load_weights(model, tmp_path / "w.npz")


@pytest.mark.parametrize(
    "metadata", ["{}", '{"config": [1]}', '{"config": {"foo": 1}}', "[" * 100_000, '{"config": {"img_size": 16}}']
)
def test_metadata_that_describes_no_model_is_refused(tmp_path, metadata):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(1)}, tmp_path / "w.safetensors", {"minicait": metadata})
    with pytest.raises(ValueError, match=r"w\.safetensors is damaged"):
        open_weights(tmp_path / "w.safetensors")


def test_numpy_numbers_can_be_saved(tmp_path):
    model = CaiT(**{**SMALL, "num_classes": np.int64(5), "img_size": np.int64(16), "layer_scale": np.float64(0.5)})
    minicait.save_weights(model, tmp_path / "w.safetensors", mean=np.ones(3), std=np.ones(3))
    assert minicait.load_model(tmp_path / "w.safetensors")[0].config == model.config


def test_bicubic():
    np.testing.assert_allclose(bicubic(5, 5), np.eye(5), atol=1e-12)
    for old, new in ((4, 7), (14, 24), (7, 3)):
        matrix = bicubic(old, new)
        np.testing.assert_allclose(matrix.sum(1), 1)  # constants stay
        line = matrix @ np.arange(old)
        assert (np.diff(line) > 0).all()
    # half-way between two pixels, a = -0.75 weighs the four around it so
    np.testing.assert_allclose(bicubic(8, 4)[1], [0, -0.09375, 0.59375, 0.59375, -0.09375, 0, 0, 0])


def test_saving_checks_its_arguments_and_leaves_no_rubbish(tmp_path):
    model = random_model()
    with pytest.raises(ValueError, match="3 class names do not fit a model with 5 classes"):
        minicait.save_weights(model, tmp_path / "w.safetensors", ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"weights are written as \.safetensors"):
        minicait.save_weights(model, tmp_path / "w.npz")
    with pytest.raises(ValueError, match="there is no folder"):
        minicait.save_weights(model, tmp_path / "nowhere/w.safetensors")
    with pytest.raises(ValueError, match="must be a list of names, got one string"):
        minicait.save_weights(model, tmp_path / "w.safetensors", "abcde")
    minicait.save_weights(model, tmp_path / "w.safetensors")
    first = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "plain").touch()
    assert (tmp_path / "w.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            minicait.save_weights(random_model(seed=1), tmp_path / "w.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    assert (tmp_path / "w.safetensors").read_bytes() == first


def test_loading_does_not_double_the_memory(tmp_path):
    """Peak memory of a process that loads 100 MB of weights, against one that only makes the model."""
    make = "from minicait.models.cait import CaiT; m = CaiT(dim=768, heads=16, depth=3, num_classes=10)"
    path = tmp_path / "w.safetensors"
    program = f"{make}; import minicait, sys; minicait.save_weights(m, {str(path)!r})"
    run(program)
    report = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    alone = float(run(f"{make}; {report}"))
    loaded = float(run(f"{make}; import minicait; minicait.load_weights(m, {str(path)!r}); {report}"))
    size = path.stat().st_size / 2**20
    assert size > 100
    assert loaded - alone < 0.35 * size


def run(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_names_of_the_classes():
    names = minicait.imagenet_classes()
    assert len(names) == 1000
    imagenette = {
        0: "tench", 217: "English springer", 482: "cassette player", 491: "chain saw", 497: "church",
        566: "French horn", 569: "garbage truck", 571: "gas pump", 574: "golf ball", 701: "parachute",
    }  # fmt: skip
    assert {i: names[i] for i in imagenette} == imagenette


def test_metadata_is_plain_json(tmp_path):
    from safetensors import safe_open

    minicait.save_weights(random_model(), tmp_path / "w.safetensors", list("abcde"))
    with safe_open(tmp_path / "w.safetensors", framework="np") as file:
        content = json.loads(file.metadata()["minicait"])
    assert content["config"]["dim"] == 12 and content["class_names"] == list("abcde") and content["crop_ratio"] == 1.0


def test_bfloat16_in_safetensors(tmp_path):
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    values = (np.float32([1.5, -2.0]).view(np.uint32) >> 16).astype(np.uint16)
    (tmp_path / "b.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    assert open_weights(tmp_path / "b.safetensors").read("x").tolist() == [1.5, -2.0]


def test_a_safetensors_header_that_lies_is_refused(tmp_path):
    path = tmp_path / "lie.safetensors"
    for entry in (
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]},
        {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]},
    ):
        header = json.dumps({"x": entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(ValueError, match=r"lie\.safetensors is damaged .*x has a shape that does not fit its size"):
            open_weights(path)
