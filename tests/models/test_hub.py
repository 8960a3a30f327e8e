"""Export of models as folders for the hub. That timm loads them is tested in test_parity."""

import json

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main, parser
from minicait.cli.train import _plan
from minicait.files.hub import ARCHITECTURES, architecture
from minicait.files.pretrained import shipped_weights
from minicait.models import FAMILIES, family_named
from minicait.run.command import train_command
from minicait.run.folder import read_plan
from minicait.run.journal import read_log
from tests.train.runs import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    assert train(out, "--epochs", "2", "--train-images", "16") == 0
    return out / "shapes-tiny-1"


def test_a_run_is_exported_with_a_card_on_its_training(run, tmp_path, capsys):
    assert main(["weights", "export", str(run), "--out", str(tmp_path / "hub")]) == 0
    assert "local-dir:" in capsys.readouterr().out
    names = {"config.json", "model.safetensors", "README.md", "curves.svg"}
    assert {p.name for p in (tmp_path / "hub").iterdir()} == names
    config = json.loads((tmp_path / "hub/config.json").read_text())
    assert config["architecture"] == "cait_xxs24_224" and config["model_args"]["img_size"] == [16, 16]
    assert config["pretrained_cfg"]["label_names"][0] == "circle"
    card = (tmp_path / "hub/README.md").read_text()
    assert card.startswith("---\nlibrary_name: timm\n") and "Trained on shapes:\n\n    minicait train " in card
    command = next(line for line in card.splitlines() if line.startswith("    minicait train "))
    args = parser().parse_args(command.split()[1:])
    assert _plan(args, args.seed) == read_plan(run)
    assert "batch_size 8" in card
    assert "| 2 | " in card and "circle" in card and "{" not in card
    best = max(max(float(row["top1"]), float(row["ema_top1"])) for row in read_log(run))
    assert f": top-1 {best:.1%} and " in card and "best of 4 candidates (2 evaluations of the weights and" in card
    Image.new("RGB", (20, 20), "red").save(tmp_path / "red.png")
    weights = [str(tmp_path / "hub"), str(run), str(run / "weights/best.safetensors")]
    results = []
    for each in weights:  # an exported folder, a run's folder, a file
        assert main(["predict", "--weights", each, "--json", str(tmp_path / "red.png")]) == 0
        results.append(capsys.readouterr().out)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    "options",
    [
        "--data imagenette --preset cait_tiny_64 --keep-side 96 --recipe small-long --epochs 132",
        "--data imagenette --classes tench,church --recipe small --set mixup=0.2 --set clip_norm=None --seed 3",
        "--preset deit_mini --patch-size 8 --difficulty hard --set optimiser=lamb --set crop=padded --evaluate-every 2",
        "--data imagenette --preset small --img-size 48 --teacher imagenette --set distillation=soft",
        "--data imagenette --weights imagenette --lr 0.01 --val-images 50 --groups imagenette",
    ],
)
def test_the_command_of_a_plan_makes_the_plan_again(options):
    args = parser().parse_args(["train", *options.split()])
    plan = _plan(args, args.seed)
    again = parser().parse_args(train_command(plan).split()[1:])
    assert _plan(again, again.seed) == plan


def test_the_command_has_no_paths(tmp_path):
    (tmp_path / "photos").mkdir()
    args = parser().parse_args(["train", "--data", str(tmp_path / "photos"), "--teacher", str(tmp_path / "t.pth")])
    command = train_command(_plan(args, 0))
    assert "--data photos " in command and "--teacher t.pth " in command and str(tmp_path) not in command


@pytest.mark.parametrize("options", [[], ["--fp16"]])
def test_weights_that_come_with_the_package_keep_their_card(tmp_path, options, capsys):
    assert main(["weights", "export", "imagenette", "--out", str(tmp_path / "hub"), *options]) == 0
    assert "curves.svg" in capsys.readouterr().out
    for name in ("README.md", "curves.svg"):
        assert (tmp_path / "hub" / name).read_text() == (shipped_weights().parent / name).read_text()
    assert (tmp_path / "hub/README.md").read_text().startswith("---\nlibrary_name: timm\nlicense: mit\n")


def test_float16_is_half_the_file_and_float32_again_in_memory(run, tmp_path):
    for name, more in (("whole", []), ("half", ["--fp16"])):
        assert (
            main(["weights", "export", str(run / "weights/best.safetensors"), "--out", str(tmp_path / name), *more])
            == 0
        )
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.55 * sizes[0]
    (whole, _), (half, _) = (minicait.load_model(tmp_path / name) for name in ("whole", "half"))
    for (name, a), (_, b) in zip(whole.named_parameters(), half.named_parameters(), strict=True):
        assert b.dtype == np.float32 and np.array_equal(a.data.astype(np.float16), b.data), name


def test_a_value_that_float16_cannot_hold_is_refused(tmp_path):
    model = minicait.create_model("cait_tiny_32", 2)
    model.head.bias.data[0] = 1e5
    with pytest.raises(ValueError, match=r"head\.bias has values that are not finite in float16"):
        minicait.save_weights(model, tmp_path / "w.safetensors", dtype=np.float16)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_every_preset_has_an_architecture_or_a_reason(family):
    for config in family_named(family).presets.values():
        try:
            name, arguments = architecture(family_named(family), config)
            assert name.startswith(family) and json.dumps(arguments)
        except ValueError as error:
            assert family not in ARCHITECTURES or family == "resmlp", error
            assert "timm has" in str(error)


def test_bad_input(run, tmp_path, capsys):
    minicait.save_weights(minicait.create_model("lvvit_mini_32", 2), tmp_path / "lvvit.safetensors")
    (tmp_path / "empty").mkdir()
    wrong = {
        (str(run), str(tmp_path)): "exists already",
        (str(tmp_path / "lvvit.safetensors"), str(tmp_path / "new")): "timm has no LVViT",
        (str(tmp_path / "empty"), str(tmp_path / "new")): "holds neither a run nor an exported model",
    }
    for (weights, out), sentence in wrong.items():
        assert main(["weights", "export", weights, "--out", out]) == 2
        assert sentence in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert not (tmp_path / "new").exists()
