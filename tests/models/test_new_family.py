"""A new family is one file and one line: every command works with it, without any other change."""

import csv
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import minicait
from autograd.ops import broadcast_to, concat
from autograd.random import Stream
from minicait import bench, nn
from minicait.cli import main
from minicait.cli.train import _model_name
from minicait.data.shapes import CLASSES, Shapes
from minicait.explain import attention_sheet, class_attention
from minicait.files.tensorfile import open_tensors
from minicait.models import FAMILIES, Config, Cost, Family, Model, Outputs, list_models
from minicait.models.cait import CaiT
from minicait.train import attention_inside

ROOT = Path(__file__).parents[2]
SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 3, "layer_scale": 0.5}
IMAGES = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)


# ---- a new family: one file ...


@dataclass(frozen=True)
class PatchMlpConfig(Config):
    hidden: int

    least: ClassVar = {**Config.least, "hidden": 1}

    def cost(self) -> Cost:
        pixels, d, h = 3 * self.patch_size**2, self.dim, self.hidden
        parameters = (pixels + 1) * d + self.depth * (2 * d * h + 3 * d + h) + (d + 1) * self.num_classes
        multiply_adds = self.patches * (pixels * d + self.depth * 2 * d * h) + d * self.num_classes
        saved = self.patches * (pixels + self.depth * (3 * d + 2 * h))
        return Cost(parameters, multiply_adds, 4 * saved, 4 * saved)


class Layer(nn.Module):
    def __init__(self, dim, hidden, drop_path, stream):
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Mlp(dim, hidden, stream.named("mlp"))
        self.drop_path = nn.DropPath(drop_path, f"{stream.purpose}/drop_path")

    def forward(self, x):
        return nn.residual(x, self.mlp, self.norm, drop_path=self.drop_path)


class PatchMlp(Model):
    """Nothing of CaiT: no attention, no class token, no positions, and a classifier of another name."""

    config_type = PatchMlpConfig
    classifiers = ("classifier",)

    def __init__(self, num_classes, img_size, patch_size, dim, depth, drop_path_rate, hidden, seed=0):
        self.config = self.configure(
            num_classes=num_classes, img_size=img_size, patch_size=patch_size, dim=dim, depth=depth,
            drop_path_rate=drop_path_rate, hidden=hidden,
        )  # fmt: skip
        stream = Stream(seed, "patch_mlp")
        self.shift = nn.Buffer(np.zeros(1, np.float32))
        self.embed = nn.PatchEmbed(patch_size, dim, stream=stream.named("embed"))
        self.layers = [Layer(dim, hidden, drop_path_rate, stream.named(f"layers.{i}")) for i in range(depth)]
        self.classifier = nn.Linear(dim, num_classes, stream=stream.named("classifier"))

    def outputs(self, images):
        x = self.embed(self.checked(images)) + self.shift
        for layer in self.layers:
            x = layer(x)
        features = x.mean(1)
        return Outputs(self.classifier(features), features=features)


class Pool(nn.Module):
    def __init__(self, dim, stream):
        self.scale = nn.LayerScale(1, 0.5)  # one number for the whole branch
        self.look = nn.ClassAttention(dim, 2, stream)

    def forward(self, token, patches):
        return nn.residual(token, self.look, scale=self.scale, reads=concat([token, patches], axis=1))


class PooledMlp(PatchMlp):
    """Class attention, but in no block with a name or a number that CaiT would know."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.token = nn.Parameter(np.ones((1, 1, self.config.dim), np.float32))
        self.pool = Pool(self.config.dim, Stream(0, "pool"))

    def outputs(self, images):
        x = self.embed(self.checked(images))
        for layer in self.layers:
            x = layer(x)
        token = self.pool(broadcast_to(self.token, (len(x), 1, x.shape[2])), x)
        return Outputs(self.classifier(token[:, 0]))


SIZES = PatchMlpConfig(1000, (16, 16), 4, 12, 2, 0.1, 20)
PATCH_MLP = Family("patch_mlp", PatchMlp, {"patch_mlp_16": SIZES}, {})
POOLED_MLP = Family("pooled_mlp", PooledMlp, {"pooled_mlp_16": SIZES}, {})


# ---- ... and one line


def add_family(patch):
    """FAMILIES = (cait.FAMILY, …, PATCH_MLP, POOLED_MLP)"""
    for name, module in list(sys.modules.items()):
        if name.startswith("minicait.") and hasattr(module, "FAMILIES"):
            patch.setattr(module, "FAMILIES", (*FAMILIES, PATCH_MLP, POOLED_MLP))


@pytest.fixture
def new_family(monkeypatch):
    add_family(monkeypatch)


# ---- the new family, with everything that there is


def test_a_new_family_is_there(new_family, capsys):
    model = minicait.create_model("patch_mlp_16", 5, drop_path_rate=0.0)
    assert type(model) is PatchMlp and model.config.hidden == 20 and model(IMAGES).shape == (4, 5)
    assert model.parameter_count() == model.cost().parameters
    assert list_models("patch_*") == ["patch_mlp_16"] and "cait_tiny_32" in list_models()
    with pytest.raises(ValueError, match="unknown model 'patch_mlp_61': did you mean patch_mlp_16"):
        minicait.create_model("patch_mlp_61")
    with pytest.raises(ValueError, match="PatchMlp: hidden must be at least 1, got 0"):
        PatchMlp(**vars(model.config) | {"hidden": 0})
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.startswith("patch_mlp_16"))
    assert row.split()[1:4] == ["12", "2", "4"]  # dim, depth, patch; there are no heads
    other = next(line for line in lines if line.startswith("cait_tiny_32"))
    assert len(row) == len(other) == lines[0].index("  weights")
    assert main(["models", "patch_*", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["family"], row["hidden"], row["published"]) == ("patch_mlp", 20, [])


def test_files_of_a_new_family(new_family, tmp_path, capsys):
    model, path = minicait.create_model("patch_mlp_16", 3, seed=5), tmp_path / "w.safetensors"
    model.shift.data[...] = 0.5
    minicait.save_weights(model, path, ["a", "b", "c"])
    again, info = minicait.load_model(path)
    assert (
        type(again) is PatchMlp and info.family == "patch_mlp" and again.config == model.config and not again.training
    )
    np.testing.assert_array_equal(again(IMAGES).numpy(), model.eval()(IMAGES).numpy())
    other = minicait.create_model("patch_mlp_16", 3, seed=6)
    minicait.load_weights(other, path)
    assert other.shift.numpy() == 0.5 and np.array_equal(
        other.classifier.weight.numpy(), model.classifier.weight.numpy()
    )
    more, info = minicait.load_model(path, classes=["c", "d"], seed=7)  # its own classifier starts anew
    fresh = minicait.create_model("patch_mlp_16", 2, seed=7).classifier.weight.numpy()
    np.testing.assert_array_equal(more.classifier.weight.numpy(), fresh)
    assert info.class_names == ["c", "d"] and more.shift.numpy() == 0.5
    with pytest.raises(ValueError, match=r"is for 3 classes, the model has 2: .* new_head=True"):
        minicait.load_weights(minicait.create_model("patch_mlp_16", 2), path)
    with pytest.raises(
        ValueError, match=r"w\.safetensors does not fit the model: it holds a patch_mlp, the model is a cait"
    ):
        minicait.load_weights(CaiT(**SMALL), path)
    assert main(["weights", "info", str(path)]) == 0
    said = capsys.readouterr().out
    assert "the sizes of patch_mlp_16" in said and '"hidden": 20' in said
    np.savez(tmp_path / "plain.npz", **model.state_dict())  # says nothing, and the family cannot tell from shapes
    with pytest.raises(
        ValueError, match=r"plain\.npz does not hold the weights of a known model \(.*patch_mlp, pooled_mlp\)"
    ):
        minicait.load_model(tmp_path / "plain.npz")


def log(folder):
    return list(csv.DictReader((folder / "log.csv").read_text().splitlines()))


def train(*options):
    few = ["--train-images", "24", "--val-images", "12", "--batch-size", "8", "--checkpoint-minutes", "0"]
    return main(["train", "--device", "cpu", *few, *map(str, options)])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on shapes."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        add_family(patch)
        assert train("--preset", "patch_mlp_16", "--epochs", 3, "--out", out) == 0
    return out / "shapes-patch_mlp_16-1"


def test_a_run_of_a_model_that_does_not_tell_where_it_looks(run, new_family, capsys):
    """There is no picture of it, but there are reports."""
    assert {path.name for path in run.iterdir()} == {
        "args.json", "log.csv", "curves.svg", "train_batch.jpg", "example.png", "weights", "checkpoint.safetensors",
        "checkpoint-previous.safetensors", "report-1.html", "report-2.html", "report-3.html", "index.html",
        "page.safetensors",
    }  # fmt: skip
    assert [row["attention_inside"] for row in log(run)] == [""] * 3
    plan = json.loads((run / "args.json").read_text())
    assert (plan["model"], plan["img_size"], plan["patch_size"]) == ("patch_mlp_16", None, None)  # its own sizes
    model, info = minicait.load_model(run / "weights/best.safetensors")
    assert type(model) is PatchMlp and info.class_names == list(CLASSES)


def test_a_run_of_a_new_family_goes_on_to_the_bit(run, new_family, tmp_path, monkeypatch, capsys):
    real, steps = minicait.train.Trainer.step, []

    def interrupted(self, *given):
        steps.append(1)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(minicait.train.Trainer, "step", interrupted)
        stopped = train("--preset", "patch_mlp_16", "--epochs", 3, "--out", tmp_path)
    assert stopped == 128 + signal.SIGTERM
    folder = tmp_path / "shapes-patch_mlp_16-1"
    capsys.readouterr()
    assert main(["train", "--device", "cpu", "--resume", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "curves.svg" in said and "best weights" in said
    assert "attention" not in said and "in a browser" in said
    for name in ("weights/last.safetensors", "weights/best.safetensors", "checkpoint.safetensors"):
        ours, theirs = (open_tensors(path / name) for path in (folder, run))
        assert ours.shapes == theirs.shapes
        for key in ours.shapes:
            np.testing.assert_array_equal(ours.read(key), theirs.read(key), err_msg=f"{name}: {key}")


def test_commands_with_weights_of_a_new_family(run, new_family, tmp_path, capsys):
    weights = ["--weights", str(run / "weights/best.safetensors")]
    assert main(["predict", "--device", "cpu", *weights, str(run / "example.png"), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert {guess["class"] for guess in result["guesses"]} <= set(CLASSES) and len(result["guesses"]) == 5
    assert main(["eval", "--device", "cpu", *weights, "--val-images", "12", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    best = max(float(value) for row in log(run) for value in (row["top1"], row["ema_top1"]))
    assert scores["images"] == 12 and scores["top1"] == best
    assert main(["eval", "--device", "cpu", *weights, "--val-images", "12", "--img-size", "24"]) == 0  # no positions
    assert train(*weights, "--epochs", 1, "--out", tmp_path, "--teacher", weights[1]) == 0
    assert "head kept" in capsys.readouterr().out


def test_a_teacher_may_be_of_another_family(run, new_family, tmp_path, capsys):
    weights = str(run / "weights/best.safetensors")
    small = ["--preset", "tiny", "--img-size", 16, "--epochs", 1]
    assert train(*small, "--teacher", weights, "--out", tmp_path) == 0
    assert f"teacher: {weights}" in capsys.readouterr().out


def test_a_model_that_has_nothing_special_is_explained(run, new_family, tmp_path, capsys):
    """Its prediction and its branches are always there."""
    weights = ["--weights", str(run / "weights/best.safetensors"), "--out", str(tmp_path / "r.html")]
    assert main(["explain", str(run / "example.png"), *weights, "--png", "--json"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", "r.json", "r-image.png", "r-residual-ratio.png"}
    assert set(json.loads((tmp_path / "r.json").read_text())) == {"image", "model", "weights", "guesses", "branches"}
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Layer layers.1, FFN: " in page and "Blocks add residual branches to the main path" in page
    assert "<canvas" not in page and "class token" not in page and "LayerScale" not in page
    model = minicait.create_model("patch_mlp_16", 10)
    with pytest.raises(ValueError, match=r"^PatchMlp has no class token whose attention could be shown$"):
        class_attention(model, IMAGES)
    assert attention_sheet(model, IMAGES, [0] * 4, CLASSES) is None and attention_inside(model, Shapes(4, 16)) is None


def test_class_attention_of_another_kind_can_be_explained(new_family, tmp_path, capsys):
    assert train("--preset", "pooled_mlp_16", "--epochs", 1, "--out", tmp_path) == 0
    assert "attention.png" in capsys.readouterr().out
    folder = tmp_path / "shapes-pooled_mlp_16-1"
    assert (folder / "report-3.html").is_file() and 0 < float(log(folder)[0]["attention_inside"]) < 1
    weights = ["--weights", str(folder / "weights/best.safetensors"), "--out", str(tmp_path / "r.html")]
    assert main(["explain", str(folder / "example.png"), *weights, "--png", "--json"]) == 0
    numbers = json.loads((tmp_path / "r.json").read_text())
    assert [branch["name"] for branch in numbers["branches"]] == ["layers.0.mlp", "layers.1.mlp", "pool.look"]
    assert np.shape(numbers["class_attention"]) == (1, 2, 4, 4)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Layer layers.1, FFN: " in page and "Layer pool, attention: " in page


def test_measuring_a_new_family(new_family, monkeypatch, capsys):
    """A side is a process of its own, so the line has to be written there as well."""
    real = bench.subprocess.Popen

    def with_family(command, **kwargs):
        code = "import sys; sys.argv = sys.argv[2:]; from tests.models.test_new_family import measure; measure()"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return real([command[0], "-c", code, *command[1:]], env=environment, **kwargs)

    monkeypatch.setattr(bench.subprocess, "Popen", with_family)
    arguments = ["bench", "--model", "patch_mlp_16", "--batch", "4", "--rounds", "1", "--threads", "1"]
    for work in ("train", "predict"):
        assert main([*arguments, "--work", work, "--device", "cpu", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["sides"][0]["name"] == "minicait" and len(result["sides"][0]["seconds"]) == 1
        assert result["floor"] > 0
    assert main([*arguments, "--profile"]) == 0
    assert "linear_residual" in capsys.readouterr().out
    assert main([*arguments, "--device", "cpu", "--against", "timm"]) == 2
    assert capsys.readouterr().err == (
        "minicait: timm cannot be measured: there is no patch_mlp to compare with, only cait, deit, deit3, resmlp; "
        "see --against in `bench --help`\n"
    )


def measure():
    """The side of a measurement that knows the new family."""
    from minicait.bench import worker

    add_family(pytest.MonkeyPatch())
    worker.main()


# ---- names for people


@pytest.mark.parametrize(
    ("short", "data", "name"),
    [
        ("tiny", "shapes", "cait_tiny_32"),
        ("tiny", "photos", "cait_tiny_64"),
        ("xxs24", "photos", "cait_xxs24_224"),
        ("cait_xxs24", "photos", "cait_xxs24_224"),
        ("xxs24_384", "photos", "cait_xxs24_384"),
        ("cait_tiny_32", "photos", "cait_tiny_32"),
        ("patch_mlp_16", "shapes", "patch_mlp_16"),
        ("16", "photos", "patch_mlp_16"),
        ("nonsense", "photos", "nonsense"),
    ],
)
def test_short_names(short, data, name, new_family):
    assert _model_name(short, data) == name


def test_an_unknown_preset_is_one_sentence(new_family, tmp_path, capsys):
    assert train("--preset", "patch_mlp_17", "--out", tmp_path / "runs") == 2
    error = capsys.readouterr().err
    assert (
        error.startswith("minicait: unknown model 'patch_mlp_17': did you mean patch_mlp_16") and error.count("\n") == 1
    )
    assert not (tmp_path / "runs").exists()
