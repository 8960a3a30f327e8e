"""The weights that come with the package: predictions and reports right after installation, without a network."""

import json
from pathlib import Path

import pytest

import minicait
from minicait.cli import main
from minicait.files.pretrained import shipped_weights

PICTURES = Path(__file__).parents[1] / "examples/pictures"


@pytest.mark.parametrize("name", ["golf_ball", "parachute", "church"])
def test_drawn_pictures_are_recognised(name, capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing is fetched
    assert main(["predict", "--json", str(PICTURES / f"{name}.jpg")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["guesses"][0]["class"] == name.replace("_", " ")
    assert "weights: imagenette" in printed.err and "know only 10 classes: tench, " in printed.err


def test_a_report_without_options(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(PICTURES / "golf_ball.jpg"), "--label", "golf ball"]) == 0
    assert "golf ball" in capsys.readouterr().out and "golf ball" in (tmp_path / "report.html").read_text()


def test_the_folder_is_an_exported_model_with_a_card():
    folder = shipped_weights().parent
    assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors", "README.md", "curves.svg"}
    assert shipped_weights().stat().st_size <= 4_000_000
    model, info = minicait.load_model("imagenette")
    card, config = (folder / "README.md").read_text(), json.loads((folder / "config.json").read_text())
    assert f"{model.parameter_count():,} parameters" in card and all(name in card for name in info.class_names)
    for part in ("## Data", "squashed", "Licence", "## Training", "| epoch | top-1 |", "train_imagenette.py"):
        assert part in card, part
    assert config["pretrained_cfg"]["label_names"] == info.class_names


def test_other_weights_are_not_announced(tmp_path, capsys):
    minicait.save_weights(minicait.create_model("cait_tiny_32", 2), tmp_path / "w.safetensors", ["a", "b"])
    assert main(["predict", "--weights", str(tmp_path / "w.safetensors"), str(PICTURES / "church.jpg")]) == 0
    assert not capsys.readouterr().err
